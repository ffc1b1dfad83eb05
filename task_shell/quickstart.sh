#!/usr/bin/env bash
# From a fresh machine to a first crawl: see usage below.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")") # also through a symbolic link
project=$(dirname "$here")

usage() {
    cat <<'END'
Usage: quickstart.sh [--compiled] [FILE]

Runs one crawler without a server, with seeds and results in SQLite files; makes .venv and installs the
requirements before. FILE has one URL or JSON seed a line (- is standard input). Without FILE, a sample site is served
on loopback and crawled. The script ends when all seeds are complete, or after Ctrl-C, and shows results, failures
and dead letters.

They are stored in data/quickstart, which each run empties first, or in $SITE_DATA_DIR, which each run adds to.
With --compiled hot modules of the crawler are compiled to C first. This takes minutes, once, and needs gcc.
END
}

if [[ -t 1 ]]; then bold=$'\e[1m' plain=$'\e[0m'; else bold='' plain=''; fi
say() { printf '%s\n' "$*"; }
headline() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
die() {
    printf 'quickstart.sh: %s\n' "$1" >&2
    exit "${2:-1}"
}

# shellcheck source=task_shell/lib/venv.sh
source "$here/lib/venv.sh"
# shellcheck source=task_shell/lib/leash.sh
source "$here/lib/leash.sh"

demo='' crawl='' interrupted=no
is_fresh=no fresh=data/quickstart.new

# check_file NAME: sets file to a path that stays valid after a change of directory
check_file() {
    file=$1
    if [[ -z $file || $file == - ]]; then return; fi
    [[ $file == /* ]] || file=$PWD/$file
    [[ -e $file ]] || die "there is no file '$1'"
    [[ -f $file || -p $file ]] || die "'$1' is not a file"
    [[ -r $file ]] || die "'$1' cannot be read"
}

# Uses the embedded default, whatever the environment says; other variables apply.
choose_parts() {
    export SITE_KAFKA_BROKERS='' SITE_SINKS=local SITE_ELASTICSEARCH_HOSTS='' SITE_REDIS_URL=''
    export SITE_STATS_TO='' SITE_KAFKA_EXACTLY_ONCE=false
    if [[ ${SITE_DUPEFILTER:-} == redis ]]; then export SITE_DUPEFILTER=memory; fi
    unset SITE_ELASTICSEARCH_HOSTS_FILE SITE_REDIS_URL_FILE # they would count more
    umask 077 # seeds carry cookies, and the log names what was crawled
    local folder=${SITE_DATA_DIR:-data}
    [[ $folder == /* ]] || folder=$project/$folder
    mkdir -p "$folder"
    exec 7<"$folder"
    be_alone 7 "$folder"
    if [[ -z ${SITE_DATA_DIR:-} ]]; then
        is_fresh=yes folder=$fresh
        chmod 700 data
        rm -rf "$fresh"
        mkdir "$fresh"
        exec 8<"$fresh" # another one may be told to use data/quickstart, which this becomes
        be_alone 8 "$fresh"
    fi
    export SITE_DATA_DIR=$folder
}

# be_alone DESCRIPTOR FOLDER
be_alone() { flock -n "$1" || die "another quickstart is running in $2"; }

# take_place: what the run before left is removed only now, when there is something to crawl instead
take_place() {
    if [[ $is_fresh == yes ]]; then
        if [[ -d data/quickstart ]]; then
            exec 9<data/quickstart
            be_alone 9 data/quickstart
        fi
        rm -rf data/quickstart
        mv "$fresh" data/quickstart
        export SITE_DATA_DIR=data/quickstart
    fi
    log=$SITE_DATA_DIR/crawl.log
}

produce_file() {
    headline "Seeds of ${1}"
    # Refused lines are reported on stderr; the others are crawled.
    "$venv/bin/scrapy" seed "$file" | tee "$SITE_DATA_DIR/seed.out" || true
    if [[ $(tail -n 1 "$SITE_DATA_DIR/seed.out") != produced\ [1-9]* ]]; then die "no line of '$1' could be used"; fi
    take_place
}

produce_demo() {
    headline "A sample site on loopback"
    take_place
    export SITE_ALLOW_PRIVATE_HOSTS=true
    local out=$SITE_DATA_DIR/demo.out
    "${leash[@]}" "$venv/bin/scrapy" demo --produce >"$out" 2>&1 </dev/null &
    demo=$!
    until grep -q '^serving' "$out"; do
        kill -0 "$demo" 2>/dev/null || { cat "$out" >&2 && die "the sample site could not be served"; }
        sleep 0.1
    done
    cat "$out"
}

compile() {
    say "Compiling modules, unless they are compiled already ..."
    PYTHONPATH=$("$venv/bin/python" hatch_build.py) || die "the modules could not be compiled: see above"
    export PYTHONPATH
}

run_crawler() {
    headline "Crawl"
    local code=0
    "${leash[@]}" "$here/crawl_spider.sh" -v "$venv" --until-done -- --logfile "$log" &
    crawl=$!
    wait "$crawl" || code=$?
    while kill -0 "$crawl" 2>/dev/null; do # a signal, passed on, has interrupted the wait
        code=0
        wait "$crawl" || code=$?
    done
    crawl=''
    if ((code != 0)); then
        tail -n 5 "$log" >&2 || true
        die "the crawl failed (exit code $code); its log is $log"
    fi
}

# shellcheck disable=SC2329 # called by trap
on_signal() {
    interrupted=yes
    if [[ -z $crawl ]]; then exit 130; fi
    kill -TERM "$crawl" 2>/dev/null || true
}

# shellcheck disable=SC2329 # called by trap
clean_up() {
    if [[ -n $demo ]]; then kill "$demo" 2>/dev/null || true; fi
    if [[ -n $crawl ]]; then kill "$crawl" 2>/dev/null || true; fi
    if [[ $is_fresh == yes ]]; then rm -rf "$fresh"; fi
}

show() {
    headline "What came of it"
    "$venv/bin/scrapy" results
    say
    "$venv/bin/scrapy" dead-letters
}

say_what_next() {
    if [[ $interrupted == yes ]]; then say "Interrupted: unfinished seeds stay in the seed log."; fi
    grep -o 'site_spider is .*' "$log" | head -n 1 | sed 's/pure Python/& (--compiled makes it faster)/' || true
    say "The crawl took $1 s. Seeds and results are kept in $SITE_DATA_DIR, the crawler's log is $log."
    headline "What to try next"
    cat <<END
  cd $(printf %q "$project")
  export SITE_DATA_DIR=$(printf %q "$SITE_DATA_DIR")
  .venv/bin/scrapy results --status none              # pages without an answer, and why
  .venv/bin/scrapy results --status 404 --format json # whole documents, for programs
  .venv/bin/scrapy dead-letters --format json         # messages that are not valid seeds
  echo http://example.com/ | .venv/bin/scrapy seed -  # one more seed ...
  ./task_shell/crawl_spider.sh --until-done           # ... and the crawler again
  ./task_shell/quickstart.sh FILE                     # your own URLs, one a line, beside what is there

With Kafka and Elasticsearch instead: set SITE_KAFKA_BROKERS=host:port, SITE_SINKS=elasticsearch and
SITE_ELASTICSEARCH_HOSTS=http://host:port, or try ./task_shell/servers.sh start kafka elasticsearch
END
}

main() {
    local requirements=(requirements.txt)
    case ${1:-} in
    -h | --help) usage && exit 0 ;;
    --compiled) requirements+=(requirements-build.txt) && shift ;;
    -?*) die "unknown option '$1' (see --help)" 2 ;;
    esac
    if (($# > 1)); then die "one FILE at most (see --help)" 2; fi
    check_file "${1:-}"
    cd "$project"
    headline "site_spider quickstart"
    prepare_venv "${requirements[@]}"
    if ((${#requirements[@]} > 1)); then compile; fi
    say "$("$venv/bin/python" --version) and $("$venv/bin/scrapy" version) in .venv"
    choose_parts
    trap clean_up EXIT
    trap on_signal INT TERM HUP
    if [[ -n $file ]]; then produce_file "$1"; else produce_demo; fi
    local began=$SECONDS
    run_crawler
    local took=$((SECONDS - began))
    show
    say
    say_what_next "$took"
}

main "$@"
