#!/usr/bin/env bash
# Runs members of the consumer group in the foreground: see usage below. This script reads options and finds the
# virtual environment; site_spider/service/supervisor.py, which lib/ links to, keeps the processes.
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

exit_failed=1 exit_usage=2

usage() {
    cat <<'END'
Usage: crawl_spider.sh [-s SPIDER] [-c CONCURRENCY] [-t TOPIC] [-g GROUP] [-v VENV] [-n PROCESSES] [--until-done]
                       [-- scrapy options]
       crawl_spider.sh [-s SPIDER] [-t TOPIC] [-g GROUP] --scale N

Runs PROCESSES crawlers, members of one consumer group, in the foreground.

  -s SPIDER        name of the spider (default: crawl_spider); its custom_settings apply
  -c CONCURRENCY   concurrent downloads of one process (CONCURRENT_REQUESTS)
  -t TOPIC         the seed topic (SITE_SEED_TOPIC)
  -g GROUP         the consumer group (SITE_CONSUMER_GROUP)
  -v VENV          the virtual environment (default: .venv of the project)
  -n PROCESSES     number of processes (default: 1)
  --until-done     end when the group has no lag and nothing is in flight
  --scale N        have the crawl_spider.sh that runs with the same -s, -t and -g keep N processes. The others go on.
                   Those that are too many stop gracefully and give their partitions to others at once. 0: all do,
                   and the script ends
  -- ...           options for `scrapy crawl`, such as: -s DOWNLOAD_DELAY=1 --logfile crawl-%p.log
                   (%p stands for the number of the process; with -n 2 and more each line begins with it)

The first SIGTERM or SIGINT (Ctrl-C) stops all processes gracefully, the second kills them. A process that
dies is restarted with growing pauses. Relative paths in settings start at the project's folder.

Exit codes (the reason is on stderr):
  0    stopped or done
  1    there is no virtual environment, or completion cannot be determined: the topic does not exist, say
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

# --- Options ------------------------------------------------------------------------------------------------

concurrency=${CONCURRENT_REQUESTS-$default_concurrency}
topic=${SITE_SEED_TOPIC-$default_topic}
group=${SITE_CONSUMER_GROUP-$default_group}
venv='' processes=$default_processes spider=$default_spider until_done=no scale=
scrapy_options=()

# count NAME VALUE: fails unless it is a whole number from 1 to 9999
count() { [[ $2 =~ ^[1-9][0-9]{0,3}$ ]] || die "$1 is '$2', but must be a number from 1 to 9999" "$exit_usage"; }

read_options() {
    while (($# > 0)); do
        case $1 in
        -h | --help) usage && exit 0 ;;
        --until-done) until_done=yes && shift && continue ;;
        --) scrapy_options=("${@:2}") && return ;;
        --scale) if (($# < 2)) || [[ ! $2 =~ ^(0|[1-9][0-9]{0,3})$ ]]; then die "--scale needs a number from 0 to 9999" "$exit_usage"; fi ;;
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
        --scale) scale=$2 ;;
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
    [[ -n $scale ]] || die "no virtual environment with Scrapy in '${venv:-$default_venv}': run task_shell/quickstart.sh once, which makes .venv, or name another with -v"
}

# supervise: becomes the supervisor; what stands behind -- are the options of `scrapy crawl`
supervise() {
    local python=${scrapy%/scrapy}/python
    [[ -x $python ]] || python=python3
    local -a given=() options=(--name crawl_spider.sh "--program=$scrapy" "--spider=$spider")
    options+=("--key=$project" "--key=$spider" "--key=$group" "--key=$topic" "--processes=$processes")
    options+=("--steady-seconds=$steady_seconds" "--longest-pause-seconds=$longest_pause_seconds")
    options+=("--setup-tries=$setup_tries" "--stop-limit-seconds=$stop_limit_seconds")
    [[ -z $scale ]] || options+=("--scale=$scale")
    [[ $until_done == no ]] || options+=(--until-done)
    # variables of the environment are read by each process, as by every command
    [[ -z $concurrency || $concurrency == "${CONCURRENT_REQUESTS-}" ]] || given+=(-s "CONCURRENT_REQUESTS=$concurrency")
    [[ -z $topic || $topic == "${SITE_SEED_TOPIC-}" ]] || given+=(-s "SITE_SEED_TOPIC=$topic")
    [[ -z $group || $group == "${SITE_CONSUMER_GROUP-}" ]] || given+=(-s "SITE_CONSUMER_GROUP=$group")
    exec "$python" -I -S "$here/lib/supervisor.py" "${options[@]}" -- "${given[@]}" "${scrapy_options[@]}"
}

main() {
    read_options "$@"
    find_scrapy
    cd "$project"
    umask 077 # for logs, and whatever else a crawler writes
    supervise
}

# Bash reads a script while it runs. As a function, all of it is read first, so it may be edited meanwhile.
main "$@"
