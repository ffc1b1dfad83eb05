# shellcheck shell=bash disable=SC2154 # sourced: servers_dir and the time limits come from servers.sh
# Processes: started with setsid, known by pid and start tick, stopped with their whole group.

# read_process PID: sets process_state, process_group and process_tick; fails when there is no such process
read_process() {
    local line
    { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
    local -a fields
    read -ra fields <<<"${line##*) }" # the name before it may hold anything, ") " included
    ((${#fields[@]} > 19)) || return 1 # met once, on a machine with far too much to do
    process_state=${fields[0]} process_group=${fields[2]} process_tick=${fields[19]}
}

# remember PIDFILE PID
remember() {
    read_process "$2" || return 1
    printf '%s %s %s\n' "$2" "$process_tick" "$process_group" >"$1"
}

# alive PIDFILE: sets pid and group; fails when that very process is gone, even if its number is in use again
alive() {
    local tick
    { read -r pid tick group <"$1"; } 2>/dev/null || return 1
    read_process "$pid" && [[ $process_tick == "$tick" && $process_state != Z ]]
}

# launch FOLDER ROLE COMMAND...: closes all files of the caller, so that $(servers.sh start) returns and no lock is kept
launch() {
    local folder=$1 role=$2 file number
    # The group is the pid: a child that is no group leader becomes one in setsid without a fork.
    (
        for file in /proc/self/fd/*; do
            number=${file##*/}
            if ((number > 2)); then exec {number}>&-; fi
        done
        exec setsid "${@:3}"
    ) </dev/null >>"$folder/logs/$role.log" 2>&1 &
    local pid=$! tries
    for ((tries = 0; tries < 100; tries++)); do
        remember "$folder/$role.pid" "$pid" || return 1
        if [[ $process_group == "$pid" ]]; then return 0; fi
        sleep 0.02
    done
    return 1
}

# running NAME: every process that makes up the server lives
running() {
    local role pid group
    for role in $("${1}_roles"); do
        alive "$servers_dir/$1/$role.pid" || return 1
    done
}

any_alive() {
    local file pid group
    for file in "$servers_dir/$1"/*.pid; do
        if alive "$file"; then return 0; fi
    done
    return 1
}

# any_died NAME: a process that was started is gone
any_died() {
    local file pid group
    for file in "$servers_dir/$1"/*.pid; do
        alive "$file" || return 0
    done
    return 1
}

# pids NAME: of the living processes, or "-"
pids() {
    local role pid group list=
    for role in $("${1}_roles"); do
        if alive "$servers_dir/$1/$role.pid"; then list+=,$pid; fi
    done
    list=${list#,}
    printf '%s' "${list:--}"
}

# any_member GROUP...: a process of these groups lives (kill -0 would count zombies)
any_member() {
    local folder process_state process_group process_tick
    for folder in /proc/[0-9]*; do
        read_process "${folder#/proc/}" || continue
        if [[ $process_state != Z && " $* " == *" $process_group "* ]]; then return 0; fi
    done
    return 1
}

# wait_for_groups SECONDS GROUP...: fails when one still has a process after that time
wait_for_groups() {
    local deadline=$((SECONDS + $1))
    while any_member "${@:2}"; do
        if ((SECONDS >= deadline)); then return 1; fi
        sleep 0.1
    done
}

# halt SIGNAL NAME: ends a server's processes and returns when none of their groups is left
halt() {
    local signal=$1 name=$2 file pid group
    local -a groups=()
    for file in "$servers_dir/$name"/*.pid; do
        alive "$file" || continue
        groups+=("$group")
        if [[ $signal == KILL ]]; then pid=-$group; fi
        kill "-$signal" -- "$pid" 2>/dev/null || true
    done
    if ((${#groups[@]} > 0)) && ! wait_for_groups "$stop_timeout_seconds" "${groups[@]}"; then
        complain "$name did not stop within $stop_timeout_seconds s: killed"
        kill -KILL -- "${groups[@]/#/-}" 2>/dev/null || true
        wait_for_groups 10 "${groups[@]}" || die "$name cannot be killed: process groups ${groups[*]}"
    fi
    rm -f "$servers_dir/$name"/*.pid
}

# abort NAME...: kills what was launched a moment ago, of which the leader may have left and the others not.
# Only for that moment: later a group's number may belong to somebody else, so halt looks at the leader first.
abort() {
    local name file group
    for name in "$@"; do
        for file in "$servers_dir/$name"/*.pid; do
            { read -r _ _ group <"$file"; } 2>/dev/null || continue
            kill -KILL -- "-$group" 2>/dev/null || true
            wait_for_groups 10 "$group" || complain "$name cannot be killed: process group $group"
            rm -f "$file"
        done
    done
}

halt_and_say() {
    any_alive "$2" || return 0
    halt "$@"
    say "$2: stopped"
}

# halt_all SIGNAL NAME...: side by side
halt_all() {
    local name job failed=0
    local -a jobs=()
    for name in "${@:2}"; do
        halt_and_say "$1" "$name" &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do wait "$job" || failed=1; done
    return "$failed"
}
