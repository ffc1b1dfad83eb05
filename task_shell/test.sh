#!/usr/bin/env bash
# Installs all that the checks and tests need, and runs them: see usage below.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
project=$(dirname "$here")
servers_folder=$project/.servers/tests      # where tests/real_servers.py looks for them
test_timeout_seconds=300                    # a test that takes longer hangs
# The servers that tests share, and the variables that name others to be used instead (tests/conftest.py).
declare -A address_of=(
    [kafka]=SITE_KAFKA_BROKERS [elasticsearch]=SITE_ELASTICSEARCH_HOSTS [hbase]=SITE_HBASE_PORT [redis]=SITE_REDIS_URL
)

usage() {
    cat <<'END'
Usage: test.sh [pytest arguments]

Makes .venv, installs what the tests need, real servers included (Java and Maven come from Debian, as root), and
runs ruff, mypy, lint-imports, shellcheck and all tests. With arguments: only pytest, with these, such as
tests/core, -k ledger or -m "not servers". Servers that run already in .servers/tests, and those that
SITE_KAFKA_BROKERS, SITE_ELASTICSEARCH_HOSTS, SITE_HBASE_PORT and SITE_REDIS_URL name, are used and left running.

Exit code: 0 when everything has passed.
END
}

say() { printf '%s\n' "$*"; }
die() {
    printf 'test.sh: %s\n' "$1" >&2
    exit "${2:-1}"
}

# shellcheck source=task_shell/lib/venv.sh
source "$here/lib/venv.sh"

failed=() started=() starter=''

# check NAME COMMAND...
check() {
    printf '\n--- %s\n' "$1"
    "${@:2}" || failed+=("$1")
}

servers() { SITE_SERVERS_DIR=$servers_folder "$here/servers.sh" "$@"; }

# start_servers: those that the tests share, unless they run, while the checks that need none go on
start_servers() {
    local name
    for name in "${!address_of[@]}"; do
        if [[ -n ${!address_of[$name]:-} ]]; then continue; fi
        servers status "$name" >/dev/null 2>&1 || started+=("$name")
    done
    if ((${#started[@]} == 0)); then return; fi
    mkdir -p "$servers_folder"
    servers start "${started[@]}" </dev/null >"$servers_folder/start.log" 2>&1 &
    starter=$!
}

await_servers() {
    if [[ -z $starter ]]; then return; fi
    wait "$starter" || failed+=("servers.sh start")
    starter=''
    cat "$servers_folder/start.log"
}

# shellcheck disable=SC2329 # called by trap
stop_servers() {
    if [[ -n $starter ]]; then kill "$starter" 2>/dev/null || true; fi
    if ((${#started[@]} > 0)); then servers stop "${started[@]}" >/dev/null 2>&1 || true; fi
}

run_pytest() {
    python -m pytest --timeout="$test_timeout_seconds" "$@"
}

check_all() {
    trap stop_servers EXIT
    trap 'exit 130' INT TERM HUP
    start_servers
    check "ruff check" ruff check .
    check "ruff format" ruff format --check .
    check "mypy" mypy
    check "lint-imports" lint-imports
    check "shellcheck" shellcheck -x task_shell/*.sh task_shell/*/*.sh .ci/run
    await_servers
    check "pytest" run_pytest
    printf '\n'
    if ((${#failed[@]} > 0)); then
        die "failed: $(printf '%s, ' "${failed[@]}" | sed 's/, $//')"
    fi
    say "Everything has passed in $SECONDS s."
}

main() {
    case ${1:-} in
    -h | --help) usage && exit 0 ;;
    esac
    cd "$project"
    prepare_venv requirements.txt requirements-dev.txt
    export PATH=$venv/bin:$PATH VIRTUAL_ENV=$venv
    export CI=${CI:-true} # a server that cannot be started fails its tests, instead of skipping them
    if (($# > 0)); then
        run_pytest "$@"
    else
        check_all
    fi
}

main "$@"
