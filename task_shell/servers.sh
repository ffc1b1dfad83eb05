#!/usr/bin/env bash
# Real servers on loopback for tests and rehearsals: see usage below.
#
# Theory of operation. A server has a folder $SITE_SERVERS_DIR/NAME with
#   ports      one "ROLE=PORT" a line, kept between starts so that clients find the server again
#   ROLE.pid   "PID START_TICK GROUP" of each process; the tick tells it from a later process with the same number
#   conf/ data/ logs/ tmp/
# and a file servers/NAME.sh with the functions NAME_commands, NAME_download, NAME_roles, NAME_ports, NAME_configure,
# NAME_launch, NAME_ready and NAME_exports. Everything else here is the same for all.
# shellcheck disable=SC2034 # what looks unused is read by the files in servers/
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")") # also through a symbolic link
project=$(dirname "$here")
resources=$project/resources/servers
servers_dir=${SITE_SERVERS_DIR:-$project/.servers}
[[ $servers_dir == /* ]] || servers_dir=$PWD/$servers_dir
cache=${SITE_SERVERS_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/site_spider/servers}
start_timeout_seconds=${SITE_SERVERS_START_TIMEOUT_SECONDS:-120}
stop_timeout_seconds=${SITE_SERVERS_STOP_TIMEOUT_SECONDS:-20}
known=(kafka elasticsearch hbase redis)
secure=no

usage() {
    cat <<'END'
Usage: servers.sh start [--secure]|stop|kill|status|env [kafka|elasticsearch|hbase|redis ...]

Runs real servers on 127.0.0.1 from their published packages. Without a name: all four.

  start    installs and downloads missing packages, starts the servers, and returns when they are ready
           --secure: with TLS, users and rights, in a folder of their own (not HBase). env then prints the options too,
           and SITE_SERVERS_*_ADMIN_* for who grants rights; docs/security.md has the rights that a crawler needs
  stop     stops the servers and returns when no process is left; data and ports are kept
  kill     kills the servers (kill -9), to rehearse an outage
  status   prints a line for each server: name, running or stopped, pid, address; exit 3 unless all are running
  env      prints "export NAME=value" lines, for: eval "$(servers.sh env)"

Environment:
  SITE_SERVERS_DIR     folder of data, ports and logs (default: .servers in the project). Different folders run side
                       by side. Remove the folder of stopped servers to remove everything
  SITE_SERVERS_CACHE   folder of downloads (default: ~/.cache/site_spider/servers)
  SITE_SERVERS_START_TIMEOUT_SECONDS     how long one start may take (default 120)
  SITE_SERVERS_STOP_TIMEOUT_SECONDS      how long a stop may take before kill -9 (default 20)
  SITE_SERVERS_KAFKA_PROPERTIES          more lines for Kafka's server.properties, read at the start
  SITE_SERVERS_ELASTICSEARCH_YML         more lines for elasticsearch.yml, read at the start
  SITE_SERVERS_ELASTICSEARCH_JAVA_OPTS   more JVM flags; -XX:TieredStopAtLevel=1 starts sooner and indexes slower
END
}

say() { printf '%s\n' "$*"; }
complain() { printf 'servers.sh: %s\n' "$*" >&2; }
die() {
    complain "$1"
    exit "${2:-1}"
}

for part in processes ports packages secure "${known[@]}"; do
    # shellcheck source=/dev/null
    source "$here/servers/$part.sh"
done

# render TEMPLATE KEY=VALUE...: prints the template with every @KEY@ replaced
render() {
    local text pair
    text=$(<"$1")
    for pair in "${@:2}"; do
        text=${text//"@${pair%%=*}@"/"${pair#*=}"}
    done
    printf '%s\n' "$text"
}

# Two commands on one folder at a time would start a server twice or stop a half-started one.
lock_folder() {
    local before
    before=$(umask)
    umask 077
    mkdir -p "$servers_dir"
    exec 9>"$servers_dir/.lock"
    umask "$before"
    flock 9
}

prepare() {
    local name=$1 folder=$servers_dir/$1 log
    halt TERM "$name" # what is left of a server of which one process died
    rm -rf "$folder/tmp"
    mkdir -p "$folder"/{conf,data,logs,tmp}
    for log in "$folder"/logs/*.log; do
        [[ ! -e $log ]] || mv "$log" "$log.previous" # readiness is read from the log: it must be this start's
    done
    settle_ports "$name"
    "${name}_configure" "$folder"
}

wait_until_ready() {
    local name=$1 deadline=$((SECONDS + start_timeout_seconds))
    until "${name}_ready" "$servers_dir/$name"; do
        if any_died "$name"; then
            complain "$name ended while starting"
            return 1
        elif ((SECONDS >= deadline)); then
            complain "$name is not ready after $start_timeout_seconds s"
            return 1
        fi
        sleep 0.2
    done
}

bring_up() {
    local name=$1 began=$SECONDS tries
    for tries in 1 2; do
        if "${name}_launch" "$servers_dir/$name" && wait_until_ready "$name"; then
            say "$name: ready at $(address "$name") after $((SECONDS - began)) s"
            return 0
        fi
        abort "$name"
        # Somebody may have taken a port between our look and the server's bind; nothing else is worth a second try.
        if ((tries == 2)) || ! any_port_taken "$name"; then break; fi
        prepare "$name"
    done
    tail -n 50 "$servers_dir/$name"/logs/*.log >&2 || true
    return 1
}

# secure_folder NAME...: from now on what starts in the folder is secured
secure_folder() {
    [[ " $* " != *" hbase "* ]] || die "HBase's clients for Python speak no TLS: see docs/security.md; name the others" 2
    command -v openssl >/dev/null || die "openssl is missing; on Debian: sudo apt-get install openssl"
    (umask 077 && make_secrets)
}

start() {
    local name failed=0
    local -a fresh=()
    starters=()
    lock_folder
    for name in "$@"; do
        if running "$name"; then
            say "$name: already running at $(address "$name")"
        else
            fresh+=("$name")
        fi
    done
    if ((${#fresh[@]} == 0)); then return 0; fi
    if [[ $secure == yes ]]; then secure_folder "${fresh[@]}"; fi
    for name in "${fresh[@]}"; do require "$name"; done
    install_required
    for name in "${fresh[@]}"; do "${name}_download"; done
    umask 077 # from here on it is data; downloads are for every user
    for name in "${fresh[@]}"; do prepare "$name"; done

    trap 'kill "${starters[@]}" 2>/dev/null; abort "${fresh[@]}"; exit 130' INT TERM HUP
    for name in "${fresh[@]}"; do
        bring_up "$name" &
        starters+=($!)
    done
    for name in "${starters[@]}"; do wait "$name" || failed=1; done
    if ((failed)); then
        halt_all TERM "${fresh[@]}"
        die "not everything could be started, so what this command had started was stopped"
    fi
}

# stop SIGNAL NAME...
stop() {
    local name
    [[ -d $servers_dir ]] || { say "nothing runs in $servers_dir" && return 0; }
    lock_folder
    for name in "${@:2}"; do
        any_alive "$name" || say "$name: was not running"
    done
    halt_all "$@"
}

status() {
    local name state code=0
    for name in "$@"; do
        state=running
        running "$name" || { state=stopped && code=3; }
        printf '%-14s %-8s %-12s %s\n' "$name" "$state" "$(pids "$name")" "$(address "$name")"
    done
    return "$code"
}

# exports MUST NAME...: MUST is yes when the names were asked for one by one
exports() {
    local must=$1 name code=0
    for name in "${@:2}"; do
        if [[ -e $servers_dir/$name/ports ]]; then
            "${name}_exports"
        else
            complain "$name was never started in $servers_dir: run 'servers.sh start $name' first"
            [[ $must == no ]] || code=1
        fi
    done
    return "$code"
}

main() {
    local verb=${1:-help} name named=yes
    local -a names=() given=()
    case $verb in
    help | -h | --help) usage && exit 0 ;;
    start | stop | kill | status | env) shift ;;
    *) die "unknown verb '$verb': say start, stop, kill, status or env (see --help)" 2 ;;
    esac
    for name in "$@"; do
        case $name in
        -h | --help) usage && exit 0 ;;
        --secure)
            [[ $verb == start ]] || die "--secure goes with start; the others know it from the folder" 2
            secure=yes
            continue
            ;;
        esac
        given+=("$name")
        [[ " ${known[*]} " == *" $name "* ]] || die "unknown server '$name': there are ${known[*]}" 2
    done
    set -- "${given[@]}"
    if (($# == 0)); then set -- "${known[@]}" && named=no; fi
    for name in "${known[@]}"; do # a server named twice is meant once
        if [[ " $* " == *" $name "* ]]; then names+=("$name"); fi
    done
    case $verb in
    start) start "${names[@]}" ;;
    stop) stop TERM "${names[@]}" ;;
    kill) stop KILL "${names[@]}" ;;
    status) status "${names[@]}" ;;
    env) exports "$named" "${names[@]}" ;;
    esac
}

main "$@"
