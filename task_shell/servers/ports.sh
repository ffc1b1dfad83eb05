# shellcheck shell=bash disable=SC2154 # sourced: servers_dir comes from servers.sh
# Ports: chosen at the first start, kept in $SITE_SERVERS_DIR/NAME/ports.

# port NAME ROLE: the kept port; prints nothing when there is none
port() {
    local role number
    [[ -e $servers_dir/$1/ports ]] || return 0
    while IFS='=' read -r role number; do
        if [[ $role == "$2" ]]; then printf '%s' "$number"; fi
    done <"$servers_dir/$1/ports"
}

# address NAME: where clients connect, the first port of the server
address() {
    local role number
    read -r role _ <<<"$("${1}_ports")"
    number=$(port "$1" "$role")
    printf '%s' "${number:+127.0.0.1:$number}"
    [[ -n $number ]] || printf '%s' -
}

# listening PORT: somebody listens there, on whatever address (0A is the kernel's LISTEN)
listening() {
    local hex
    printf -v hex '%04X' "$1"
    grep -qsE "^ *[0-9]+: [0-9A-F]+:$hex [0-9A-F]+:0000 0A " /proc/net/tcp /proc/net/tcp6
}

any_port_taken() {
    local role
    for role in $("${1}_ports"); do
        if listening "$(port "$1" "$role")"; then return 0; fi
    done
    return 1
}

# free_port: below the range that the kernel gives to outgoing connections (32768 on), which would take it away
free_port() {
    local number
    while :; do
        number=$((20000 + RANDOM % 12000))
        if listening "$number"; then continue; fi
        if grep -qs "=$number\$" "$servers_dir"/*/ports; then continue; fi # of a server that starts beside this one
        printf '%s' "$number"
        return 0
    done
}

# settle_ports NAME: keeps each port that is still free, and chooses the others
settle_ports() {
    local name=$1 role number kept lines=
    for role in $("${name}_ports"); do
        kept=$(port "$name" "$role")
        number=$kept
        if [[ -z $kept ]] || listening "$kept"; then number=$(free_port); fi
        if [[ -n $kept && $number != "$kept" ]]; then
            say "$name: $role port $kept is in use by another program, so it moves to $number"
        fi
        lines+="$role=$number"$'\n'
    done
    printf '%s' "$lines" >"$servers_dir/$name/ports"
}
