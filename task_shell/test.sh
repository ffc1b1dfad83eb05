#!/usr/bin/env bash
# Installs all that the checks and tests need, and runs them: see usage below.
#
# Theory of operation. One pytest has several workers (pytest-xdist): more than there are cores, because each waits for
# servers and crawlers for most of its time. The servers that tests share are started and stopped here, for all of them.
# Debian's packages and pip's are installed at once. mypy and what else reads the sources alone run beside the tests, and
# are heard at the end.
# Pytest has a session of its own: Ctrl-C reaches this script alone, which passes one SIGINT on to it and its workers,
# so that fixtures stop what they have started.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")") # also through a symbolic link
project=$(dirname "$here")
servers_folder=$project/.servers/tests      # where tests/real_servers.py looks for them
test_timeout_seconds=600                    # a test that takes longer hangs, on a busy machine too
clean_up_seconds=90                         # for the fixtures after Ctrl-C; then kill -9
# The servers that tests share, and the variables that name others to be used instead (tests/conftest.py).
declare -A address_of=(
    [kafka]=SITE_KAFKA_BROKERS [elasticsearch]=SITE_ELASTICSEARCH_HOSTS [hbase]=SITE_HBASE_PORT [redis]=SITE_REDIS_URL
)

# Programs of Debian that tests run by themselves (tests/debian.py), and their packages.
declare -A package_of=(
    [promtool]=prometheus [amtool]=prometheus-alertmanager [npm]=npm [chromium]=chromium [openssl]=openssl
    [jq]=jq [sqlite3]=sqlite3 [git]=git [gcc]=build-essential [python3-config]=python3-dev
    [podman]=podman [buildah]=buildah [runc]=runc [debootstrap]=debootstrap [systemd-analyze]=systemd
)

usage() {
    cat <<'END'
Usage: test.sh [--quick | --nightly | pytest arguments]

Installs what the tests need and runs them. It makes .venv and installs real servers (as root, from Debian: Java and Maven
for the servers, Prometheus, Alertmanager, Chromium and Podman for some tests).
Then it runs ruff, mypy, lint-imports, shellcheck, and all tests, in several processes at once; at the end it says what they
took, and fails when that is over the budget of tests/slow.toml. With arguments it runs pytest only, in one process, with
these arguments, such as tests/ledger, -k ledger or -m "not servers". Servers that run in .servers/tests, and servers that
SITE_KAFKA_BROKERS, SITE_ELASTICSEARCH_HOSTS, SITE_HBASE_PORT and SITE_REDIS_URL name, are used and stay running.

  --quick      only the tests that need no server and start no process: one to five minutes
  --nightly    only the tests that are too long for each change (marked nightly)

Environment:
  TEST_WORKERS    how many processes run all tests, or the quick ones (default 8 and 3)

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
# shellcheck source=task_shell/lib/leash.sh
source "$here/lib/leash.sh"

failed=() started=() beside=() starter='' tests='' places_before=''
pytest=(python -m pytest --timeout="$test_timeout_seconds")
workers=${TEST_WORKERS:-8} quick_workers=${TEST_WORKERS:-3}

# check NAME COMMAND...
check() {
    printf '\n--- %s\n' "$1"
    "${@:2}" || failed+=("$1")
}

servers() { SITE_SERVERS_DIR=$servers_folder "$here/servers.sh" "$@"; }

# install_programs: those of Debian that tests run; without root they are left out, and their tests say what is missing
install_programs() {
    local command
    local -a missing=()
    for command in "${!package_of[@]}"; do
        command -v "$command" >/dev/null || missing+=("${package_of[$command]}")
    done
    if ((${#missing[@]} == 0)); then return; fi
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
        say "Missing for some tests; on Debian: sudo apt-get install ${missing[*]}"
        return
    fi
    say "Installing ${missing[*]} ..."
    install_packages "${missing[@]}" >/dev/null || die "apt-get could not install ${missing[*]}"
}

# start_servers: those that the tests share, unless they run, while the checks that need none go on
start_servers() {
    local name
    for name in "${!address_of[@]}"; do
        if [[ -n ${!address_of[$name]:-} ]]; then continue; fi
        servers status "$name" >/dev/null 2>&1 || started+=("$name")
    done
    if ((${#started[@]} == 0)); then return; fi
    mkdir -p "$servers_folder"
    # as in tests/real_servers.py: no broker is shut out because the machine stands still
    SITE_SERVERS_KAFKA_PROPERTIES=broker.session.timeout.ms=60000 \
        servers start "${started[@]}" </dev/null >"$servers_folder/start.log" 2>&1 &
    starter=$!
}

await_servers() {
    if [[ -z $starter ]]; then return; fi
    wait "$starter" || failed+=("servers.sh start")
    starter=''
    cat "$servers_folder/start.log"
}

stop_servers() {
    if [[ -n $starter ]]; then kill "$starter" 2>/dev/null || true; fi
    if ((${#started[@]} > 0)); then servers stop "${started[@]}" >/dev/null 2>&1 || true; fi
}

# beside NAME COMMAND...: a check that runs while others do
beside() {
    local log
    log=$(mktemp)
    "${@:2}" >"$log" 2>&1 </dev/null &
    beside+=("$1 $! $log")
}

# hear_beside: in the order in which they were begun
hear_beside() {
    local one name pid log
    for one in "${beside[@]}"; do
        read -r name pid log <<<"$one"
        wait "$pid" || failed+=("$name")
        printf '\n--- %s\n' "$name"
        cat "$log"
        rm "$log"
    done
    beside=()
}

stop_beside() {
    local one name pid log
    for one in "${beside[@]}"; do
        read -r name pid log <<<"$one"
        kill "$pid" 2>/dev/null || true
        rm -f "$log"
    done
}

collect() { python -m pytest --collect-only -qq | tail -n 1; }

# places: what is in the folders in which no test leaves anything
places() {
    git status --porcelain 2>/dev/null || true
    ls -A "${HOME:-/}" "${XDG_RUNTIME_DIR:-/nonexistent}" 2>/dev/null || true
}

same_places() { diff <(printf '%s\n' "$places_before") <(places); }

# run_tests: bash lets what it starts with & ignore SIGINT, pytest must not
run_tests() {
    "${leash[@]}" env --default-signal=INT "${pytest[@]}" --numprocesses "$workers" --dist loadgroup \
        --no-loadscope-reorder --figures </dev/null &
    tests=$!
    wait "$tests" || failed+=(pytest)
    tests=''
}

# stop_tests: as Ctrl-C does, and not before their fixtures are through; a second Ctrl-C ends the patience
stop_tests() {
    # in a trap a bare return has the status of what ended the script, which would end the trap as well
    if [[ -z $tests ]]; then return 0; fi
    kill -INT -- "-$tests" 2>/dev/null || true
    timeout --foreground "$clean_up_seconds" tail --pid="$tests" -f /dev/null || true
    kill -KILL -- "-$tests" 2>/dev/null || true
}

# shellcheck disable=SC2329 # called by trap
stop_all() {
    trap : INT TERM HUP
    stop_tests
    stop_beside
    stop_servers
}

check_all() {
    trap stop_all EXIT
    trap 'exit 130' INT TERM HUP
    start_servers
    beside mypy mypy
    check "ruff check" ruff check .
    check "ruff format" ruff format --check .
    check "pytest --collect-only" collect # writes the bytecode that workers read
    beside lint-imports lint-imports
    beside shellcheck shellcheck -x task_shell/*.sh task_shell/*/*.sh .ci/run
    await_servers
    places_before=$(places)
    printf '\n--- pytest\n'
    run_tests
    hear_beside
    check "files that tests leave behind" same_places
    printf '\n'
    if ((${#failed[@]} > 0)); then
        die "failed: $(printf '%s, ' "${failed[@]}" | sed 's/, $//')"
    fi
    say "Everything has passed in $SECONDS s."
}

# prepare ARGUMENT: the packages of Python and, unless the tests are those that start no process, of Debian
prepare() {
    local programs=''
    if [[ $1 != --quick ]]; then
        need_python # by apt, if it is missing, which takes turns with nobody
        install_programs &
        programs=$!
    fi
    prepare_venv requirements.txt requirements-dev.txt
    if [[ -n $programs ]]; then wait "$programs" || exit 1; fi # it has said why
}

main() {
    case ${1:-} in
    -h | --help) usage && exit 0 ;;
    esac
    cd "$project"
    prepare "${1:-}"
    export PATH=$venv/bin:$PATH VIRTUAL_ENV=$venv
    unset PYTHONDONTWRITEBYTECODE # hundreds of processes start
    python -m compileall -q site_spider tools
    # Elasticsearch starts sooner, and indexes slower, which matters little for the amounts of tests.
    export SITE_SERVERS_ELASTICSEARCH_JAVA_OPTS=${SITE_SERVERS_ELASTICSEARCH_JAVA_OPTS:--XX:TieredStopAtLevel=1}
    export SITE_SERVERS_START_TIMEOUT_SECONDS=${SITE_SERVERS_START_TIMEOUT_SECONDS:-300}
    export CI=${CI:-true} # a server that cannot be started fails its tests, instead of skipping them
    if [[ ${1:-} == --quick ]]; then
        "${pytest[@]}" --numprocesses "$quick_workers" --dist loadgroup "$@"
    elif (($# > 0)); then
        "${pytest[@]}" "$@"
    else
        check_all
    fi
}

main "$@"
