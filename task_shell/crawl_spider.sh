#!/usr/bin/env bash
# Runs members of the consumer group in the foreground: see usage below.
#
# Theory of operation. Slots 1 to $processes each hold one crawler; slot 0 holds the watcher of --until-done. A slot
# always has exactly one process: its program, or a `sleep` for the pause before the next start. The script waits
# for one thing, the end of any process, and `on_end` decides what follows. Bash can forget a process that was killed
# before `wait -n` has reported it, so the script checks once a second, and after every end, which processes are
# alive. A signal handler starts nothing: it may run between the start of a process and the moment when its pid is
# stored. Every process has its own session: Ctrl-C on a terminal reaches this script alone, which passes one SIGTERM
# on, because a second one stops a crawler uncleanly.
set -euo pipefail

# --- Defaults, to be edited for an installation ---------------------------------------------------------
# An option of this script overrides an environment variable, and that overrides a default here. Where it is empty,
# the spider's custom_settings and site_spider/settings.py decide.
default_concurrency=        # -c, CONCURRENT_REQUESTS: concurrent downloads of one process
default_topic=              # -t, SITE_SEED_TOPIC
default_group=              # -g, SITE_CONSUMER_GROUP
default_venv=.venv          # -v: the virtual environment; a relative path starts at the project
default_processes=1         # -n
default_spider=crawl_spider # -s
steady_seconds=60           # after this lifetime the pauses begin again with the shortest
longest_pause_seconds=60    # between two starts; 0.5, 1, 2, 4 ... up to this
setup_tries=5               # failed starts of each process before any has taken seeds; then the script ends
stop_limit_seconds=300      # then kill -9; keep it well above SITE_STOP_GRACE_SECONDS

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")") # also through a symbolic link
project=$(dirname "$here")

exit_failed=1 exit_usage=2 exit_unavailable=69 exit_setup=71 exit_config=78 exit_killed=137

usage() {
    cat <<'END'
Usage: crawl_spider.sh [-s SPIDER] [-c CONCURRENCY] [-t TOPIC] [-g GROUP] [-v VENV] [-n PROCESSES] [--until-done]
                       [-- scrapy options]

Runs PROCESSES crawlers, members of one consumer group, in the foreground.

  -s SPIDER        name of the spider (default: crawl_spider); its custom_settings apply
  -c CONCURRENCY   concurrent downloads of one process (CONCURRENT_REQUESTS)
  -t TOPIC         the seed topic (SITE_SEED_TOPIC)
  -g GROUP         the consumer group (SITE_CONSUMER_GROUP)
  -v VENV          the virtual environment (default: .venv of the project)
  -n PROCESSES     number of processes (default: 1)
  --until-done     end when the group has no lag and nothing is in flight
  -- ...           options for `scrapy crawl`, such as: -s DOWNLOAD_DELAY=1 --logfile crawl-%p.log
                   (%p stands for the number of the process; with -n 2 and more each line begins with it)

The first SIGTERM or SIGINT (Ctrl-C) stops all processes gracefully, the second kills them. A process that
dies is restarted with growing pauses. Relative paths in settings start at the project's folder.

Exit codes (the reason is on stderr):
  0    stopped or done
  1    completion cannot be determined, for example because the topic does not exist
  2    an option is wrong
  69   a server is away at the start
  71   no process could take seeds in five starts
  78   a setting cannot be used
  137  killed by a second signal
END
}

complain() { printf 'crawl_spider.sh: %s\n' "$*" >&2; }
die() {
    complain "$1"
    exit "${2:-$exit_failed}"
}

# shellcheck source=task_shell/lib/leash.sh
source "$here/lib/leash.sh"

# --- Options ------------------------------------------------------------------------------------------------

concurrency=${CONCURRENT_REQUESTS-$default_concurrency}
topic=${SITE_SEED_TOPIC-$default_topic}
group=${SITE_CONSUMER_GROUP-$default_group}
venv='' processes=$default_processes spider=$default_spider until_done=no
scrapy_options=()

# count NAME VALUE: fails unless it is a whole number from 1 to 9999
count() { [[ $2 =~ ^[1-9][0-9]{0,3}$ ]] || die "$1 is '$2', but must be a number from 1 to 9999" "$exit_usage"; }

read_options() {
    while (($# > 0)); do
        case $1 in
        -h | --help) usage && exit 0 ;;
        --until-done) until_done=yes && shift && continue ;;
        --) scrapy_options=("${@:2}") && return ;;
        -[sctgvn]) if (($# < 2)) || [[ -z $2 ]]; then die "option $1 needs a value (see --help)" "$exit_usage"; fi ;;
        *) die "unknown option '$1' (see --help); options for scrapy stand after --" "$exit_usage" ;;
        esac
        case $1 in
        -s) spider=$2 ;;
        -c) count "$1" "$2" && concurrency=$2 ;;
        -t) topic=$2 ;;
        -g) group=$2 ;;
        -v) venv=$2 ;;
        -n) count "$1" "$2" && processes=$2 ;;
        esac
        shift 2
    done
}

# find_scrapy: a path given with -v is searched in the working directory, then in the project
find_scrapy() {
    local folder
    for folder in "${venv:+$PWD/$venv}" "$project/${venv:-$default_venv}" "${venv:-$default_venv}"; do
        scrapy=$folder/bin/scrapy
        if [[ $folder == /* && -x $scrapy ]]; then return; fi
    done
    die "no virtual environment with Scrapy in '${venv:-$default_venv}': run task_shell/quickstart.sh once, which makes .venv, or name another with -v"
}

# setting_options: prints the options for scrapy that set a setting; the watcher needs them, too
setting_options() {
    local previous='' option
    for option in "${scrapy_options[@]}"; do
        case $previous in
        -s | --set) printf '%s\n' "-s" "$option" ;;
        esac
        case $option in
        -s?* | --set=*) printf '%s\n' "$option" ;;
        esac
        previous=$option
    done
}

compose() {
    local -a given=()
    [[ -z $concurrency ]] || given+=(-s "CONCURRENT_REQUESTS=$concurrency")
    [[ -z $topic ]] || given+=(-s "SITE_SEED_TOPIC=$topic")
    [[ -z $group ]] || given+=(-s "SITE_CONSUMER_GROUP=$group")
    crawler=("$scrapy" crawl "$spider" "${given[@]}" "${scrapy_options[@]}")
    local -a settings
    mapfile -t settings < <(setting_options)
    local -a of_spider=()
    [[ $spider == crawl_spider ]] || of_spider=(--spider "$spider")
    watcher=("$scrapy" progress --until-done "${of_spider[@]}" "${given[@]}" "${settings[@]}")
    # The progress line that is redrawn would mix with log lines.
    [[ " ${scrapy_options[*]} " == *" --logfile"* ]] || watcher=(env TERM=dumb "${watcher[@]}")
}

# --- Processes ----------------------------------------------------------------------------------------------

declare -A slot_of=() paused=() # by pid
declare -a began=() starts=() failures=()
declare -A endings=() # by "slot code": how often a process was started again after it had ended so
stopping=no has_worked=no signals=0 exit_code=0 deadline=0 pulse=

# launch SLOT COMMAND...
launch() {
    "${leash[@]}" "${@:2}" </dev/null &
    slot_of[$!]=$1
    # The signal to stop may have arrived just now, before this process was known.
    if [[ $stopping == yes ]]; then kill -TERM "$!" 2>/dev/null || true; fi
}

# restarts_of SLOT: prints such as 137:2,70:1, for the metrics of its next process
restarts_of() {
    local key
    local -a found=()
    for key in "${!endings[@]}"; do
        [[ $key != "$1 "* ]] || found+=("${key#* }:${endings[$key]}")
    done
    (IFS=, && printf '%s' "${found[*]}")
}

start_slot() {
    local slot=$1
    began[slot]=$SECONDS
    starts[slot]=$((${starts[slot]:-0} + 1))
    local -a command=("${crawler[@]}")
    if ((slot == 0)); then command=("${watcher[@]}"); fi
    launch "$slot" env CRAWL_SPIDER_SLOT="$slot" CRAWL_SPIDER_PROCESSES="$processes" \
        CRAWL_SPIDER_RESTARTS="$(restarts_of "$slot")" "${command[@]}"
}

# pause_slot SLOT SECONDS
pause_slot() {
    launch "$1" sleep "$2"
    paused[$!]=yes
}

# signal_all SIGNAL
signal_all() {
    if ((${#slot_of[@]} > 0)); then kill "-$1" "${!slot_of[@]}" 2>/dev/null || true; fi
}

# stop_all EXIT_CODE: gracefully; the first exit code counts
stop_all() {
    [[ $stopping == no ]] || return 0
    stopping=yes exit_code=$1 deadline=$((SECONDS + stop_limit_seconds))
    signal_all TERM
}

kill_all() {
    exit_code=$exit_killed
    signal_all KILL
}

# shellcheck disable=SC2329 # called by trap
on_signal() {
    signals=$((signals + 1))
    if ((signals == 1)); then stop_all 0; else kill_all; fi
}

ending() { # CODE: how a process ended, in words
    if (($1 > 128)); then printf 'was killed by signal %s' "$(kill -l "$1")"; else printf 'ended with exit code %s' "$1"; fi
}

# start_again SLOT WHAT: after a pause that grows while lifetimes are short
start_again() {
    local slot=$1 lived=$((SECONDS - began[$1])) pause
    if ((lived >= steady_seconds)); then failures[slot]=0; fi
    local times=${failures[slot]:-0}
    failures[slot]=$((times + 1))
    pause=$((times < 7 ? 1 << times : 128)) # in half seconds
    if ((pause > 2 * longest_pause_seconds)); then pause=$((2 * longest_pause_seconds)); fi
    pause=$((pause / 2)).$((pause % 2 * 5))
    complain "$2 after $lived s; starting again in $pause s"
    pause_slot "$slot" "$pause"
}

# is_hopeless SLOT: each process, this one included, has failed in its set-up often enough, and none runs
is_hopeless() {
    local slot pid
    for ((slot = 1; slot <= processes; slot++)); do
        ((${failures[slot]:-0} + (slot == $1) >= setup_tries)) || return
    done
    for pid in "${!slot_of[@]}"; do
        [[ ${slot_of[$pid]} == 0 || ${paused[$pid]:-no} == yes ]] || return
    done
    [[ $has_worked == no ]]
}

# crawler_ended SLOT CODE
crawler_ended() {
    if (($2 != exit_setup && $2 != exit_unavailable)); then has_worked=yes; fi
    if (($2 == exit_config || $2 == exit_usage)); then
        stop_all "$2" # the process has said why
    elif (($2 == exit_unavailable && starts[$1] == 1)); then
        stop_all "$exit_unavailable"
    elif (($2 == exit_setup)) && is_hopeless "$1"; then
        complain "process $1 $(ending "$2"): no process could take seeds in $setup_tries starts; the reason is above"
        stop_all "$exit_setup"
    else
        endings["$1 $2"]=$((${endings["$1 $2"]:-0} + 1))
        start_again "$1" "process $1 $(ending "$2")"
    fi
}

# watcher_ended CODE
watcher_ended() {
    if (($1 == 0)); then
        stop_all 0
    elif (($1 > 128)); then
        start_again 0 "the watcher $(ending "$1")"
    else
        stop_all "$exit_failed"
    fi
}

# on_end PID CODE
on_end() {
    local slot=${slot_of[$1]} was_pause=${paused[$1]:-no}
    unset "slot_of[$1]" "paused[$1]"
    if [[ $stopping == yes ]]; then
        # found to be done while a crawler was still finding out that it cannot work
        if ((slot > 0 && exit_code == 0 && ($2 == exit_config || $2 == exit_usage))); then exit_code=$2; fi
        return
    elif [[ $was_pause == yes ]]; then
        start_slot "$slot"
    elif ((slot == 0)); then
        watcher_ended "$2"
    else
        crawler_ended "$slot" "$2"
    fi
}

# await_end: returns when a process has ended, a signal has come, or a second has passed
await_end() {
    local ended='' code=0
    if [[ -z $pulse ]] || ! kill -0 "$pulse" 2>/dev/null; then
        sleep 1 &
        pulse=$!
    fi
    wait -n -p ended || code=$?
    if [[ -n ${slot_of[${ended:-none}]:-} ]]; then on_end "$ended" "$code"; fi
}

# look_around: finds processes that ended unnoticed
look_around() {
    local pid code
    for pid in "${!slot_of[@]}"; do
        if kill -0 "$pid" 2>/dev/null; then continue; fi
        code=0
        wait "$pid" || code=$?
        on_end "$pid" "$code"
    done
    if [[ $stopping == yes ]] && ((SECONDS >= deadline && ${#slot_of[@]} > 0)); then
        complain "not all processes have stopped within $stop_limit_seconds s: killing them"
        deadline=$((SECONDS + stop_limit_seconds))
        kill_all
    fi
}

supervise() {
    local slot first=1
    if [[ $until_done == yes ]]; then first=0; fi
    trap on_signal TERM INT HUP
    for ((slot = first; slot <= processes; slot++)); do
        if [[ $stopping == no ]]; then start_slot "$slot"; fi
    done
    while ((${#slot_of[@]} > 0)); do
        await_end
        look_around
    done
    if [[ -n $pulse ]]; then kill "$pulse" 2>/dev/null || true; fi
}

main() {
    read_options "$@"
    find_scrapy
    cd "$project"
    umask 077 # for logs, and whatever else a crawler writes
    compose
    supervise
    exit "$exit_code"
}

# Bash reads a script while it runs. As a function, all of it is read first, so it may be edited meanwhile.
main "$@"
