#!/usr/bin/env bash
# Shows that no seed is lost while processes and servers die: see `chaos.sh --help`, tools/chaos and docs/reliability.md.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")") # also through a symbolic link
# shellcheck source=task_shell/lib/program.sh
source "$here/lib/program.sh"
run_program chaos.sh tools.chaos "$@" && exit 0 || exit $?
