#!/usr/bin/env bash
# Measures what a page costs this project and others: see `bench.sh --help`, tools/race and docs/performance.md.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")") # also through a symbolic link
# shellcheck source=task_shell/lib/program.sh
source "$here/lib/program.sh"
run_program bench.sh tools.race "$@" && exit 0 || exit $?
