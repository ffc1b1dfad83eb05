# shellcheck shell=bash disable=SC2154 # sourced: die and exit_failed are the script's
# How `crawl_spider.sh --scale N` reaches the script that runs: a file names its process, another one the number that
# is wanted, and SIGUSR1 tells it to look. Both lie in a folder that only this user may enter.

# control_init NAME...: the files of the script that was started with the same options
control_init() {
    local folder=${XDG_RUNTIME_DIR:-}
    if [[ -z $folder || ! -w $folder ]]; then folder=${TMPDIR:-/tmp}; fi
    folder+=/site_spider-$UID-scripts
    (umask 077 && mkdir -p "$folder")
    [[ -O $folder ]] || die "the folder $folder is not yours: remove it, or set XDG_RUNTIME_DIR to a folder of your own"
    control=$folder/$(printf '%s\n' "$@" | sha256sum | cut -c 1-16)
}

# control_owner: prints the process id of the script that runs
control_owner() {
    local pid=''
    [[ -r $control.pid ]] && read -r pid <"$control.pid"
    [[ $pid =~ ^[0-9]+$ ]] && tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q crawl_spider.sh && printf '%s' "$pid"
}

# control_claim: from now on --scale reaches this script, unless it reaches another one
control_claim() {
    if control_owner >/dev/null; then
        complain "another crawl_spider.sh runs with the same project, spider, group and topic; --scale reaches that one"
    else
        printf '%s\n' "$$" >"$control.pid"
    fi
}

control_release() {
    if [[ $(control_owner) == "$$" ]]; then rm -f "$control.pid" "$control.scale"; fi
}

# control_scale N: have the script that runs keep N processes
control_scale() {
    local pid
    pid=$(control_owner) || die "no crawl_spider.sh runs here with this project, spider, group and topic: name those it was started with (-s, -g, -t)"
    printf '%s\n' "$1" >"$control.scale.$$"
    mv "$control.scale.$$" "$control.scale"
    kill -USR1 "$pid"
}

# control_wanted: prints the number that was asked for
control_wanted() {
    local wanted=''
    [[ -r $control.scale ]] && read -r wanted <"$control.scale"
    [[ $wanted =~ ^(0|[1-9][0-9]{0,3})$ ]] && printf '%s' "$wanted"
}
