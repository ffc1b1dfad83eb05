# shellcheck shell=bash disable=SC2154 # sourced: here comes from the scripts
# How bench.sh and chaos.sh run a program of tools/: this finds the virtual environment, and stops the servers if the
# program dies. The kernel stops the crawlers and the site then.

complain() { printf '%s: %s\n' "$name" "$*" >&2; }

stop_servers() {
    local servers server
    for servers in "$folder"/servers-*; do
        if [[ -d $servers ]]; then
            server=${servers##*/servers-}
            SITE_SERVERS_DIR=$servers "$here/servers.sh" kill "${server%%-*}" >&2 || true
        fi
    done
}

# run_program SCRIPT MODULE ARGUMENT...: sets folder, which the program is given; returns its exit code
run_program() {
    name=$1
    local project python program code=0
    project=$(dirname "$here") python=$(dirname "$here")/.venv/bin/python
    if ! "$python" -c 'import scrapy' 2>/dev/null; then
        complain "no virtual environment with Scrapy in $project/.venv: run task_shell/quickstart.sh once, which makes it"
        exit 69
    fi
    folder=$(mktemp -d "${TMPDIR:-/tmp}/${name%.sh}-XXXXXXXX") || exit 1
    # -P: a tools.py of the folder it is run from is not ours
    PYTHONPATH=$project "$python" -P -m "$2" --folder "$folder" "${@:3}" &
    program=$!
    # A signal may have come to the script alone; a second one changes nothing.
    trap 'kill -TERM "$program" 2>/dev/null || true' INT TERM HUP
    wait "$program" || code=$?
    while kill -0 "$program" 2>/dev/null; do # a signal, passed on, has interrupted the wait
        code=0
        wait "$program" || code=$?
    done
    if ((code > 128 && code != 130)); then # 130: interrupted
        complain "the program itself was killed by signal $(kill -l "$code"); its logs are in $folder"
        stop_servers
    fi
    rmdir "$folder" 2>/dev/null || true # of a run that never began
    return "$code"
}
