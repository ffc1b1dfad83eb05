#!/usr/bin/env bash
# Shows that no seed is lost while processes and servers die: see `chaos.sh --help` and docs/reliability.md.
#
# The program is in tools/chaos. This script finds the virtual environment and stops the servers if that program
# dies. The kernel stops the crawlers and the site then.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")") # also through a symbolic link
project=$(dirname "$here")
python=$project/.venv/bin/python

exit_unavailable=69 exit_interrupted=130

complain() { printf 'chaos.sh: %s\n' "$*" >&2; }

stop_servers() {
    local servers name
    for servers in "$folder"/servers-*; do
        if [[ -d $servers ]]; then
            name=${servers##*/servers-}
            SITE_SERVERS_DIR=$servers "$here/servers.sh" kill "${name%%-*}" >&2 || true
        fi
    done
}

run() {
    "$python" -m tools.chaos --folder "$folder" "$@" &
    local program=$! code=0
    # A signal may have come to this script alone; a second one changes nothing.
    trap 'kill -TERM "$program" 2>/dev/null || true' INT TERM HUP
    wait "$program" || code=$?
    while kill -0 "$program" 2>/dev/null; do # a signal, passed on, has interrupted the wait
        code=0
        wait "$program" || code=$?
    done
    if ((code > 128 && code != exit_interrupted)); then
        complain "the program itself was killed by signal $(kill -l "$code"); its logs are in $folder"
        stop_servers
    fi
    rmdir "$folder" 2>/dev/null || true # of a run that never began
    return "$code"
}

if ! "$python" -c 'import scrapy' 2>/dev/null; then
    complain "no virtual environment with Scrapy in $project/.venv: run task_shell/quickstart.sh once, which makes it"
    exit "$exit_unavailable"
fi
folder=$(mktemp -d "${TMPDIR:-/tmp}/chaos-XXXXXXXX")
cd "$project"
run "$@" && exit 0 || exit $?
