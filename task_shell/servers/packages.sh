# shellcheck shell=bash disable=SC2154 # sourced: here, cache and resources come from servers.sh
# What servers need: Debian packages for programs, Maven for the servers themselves.

# shellcheck source=task_shell/lib/packages.sh
source "$here/lib/packages.sh"

required_packages=()

# java_home: of the first Java that is new enough; fails when there is none
java_home() {
    local java version
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*/bin/java; do
        [[ -x $java ]] || continue
        version=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
        if ((${version:-0} >= 17)); then
            dirname "$(dirname "$(readlink -f "$java")")"
            return 0
        fi
    done
    return 1
}

have() {
    case $1 in
    java) java_home >/dev/null ;;
    javac) [[ -x $(java_home)/bin/javac ]] ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

package_of() {
    case $1 in
    java) printf 'openjdk-17-jre-headless' ;;
    javac) printf 'openjdk-17-jdk-headless' ;;
    mvn) printf 'maven' ;;
    redis-cli) printf 'redis-tools' ;;
    *) printf '%s' "$1" ;;
    esac
}

# require NAME: notes the packages of the commands that the server needs and this machine lacks
require() {
    local command
    for command in $("${1}_commands"); do
        have "$command" || required_packages+=("$(package_of "$command")")
    done
}

install_required() {
    if ((${#required_packages[@]} == 0)); then return 0; fi
    local -a names
    local log=$servers_dir/install.log
    mapfile -t names < <(printf '%s\n' "${required_packages[@]}" | sort -u)
    if ((EUID != 0)); then
        complain "only root can install what is missing, so run this first (any Java from 17 on will do):"
        die "sudo apt-get install ${names[*]}"
    fi
    say "installing ${names[*]} ..."
    install_packages "${names[@]}" >"$log" 2>&1 || {
        tail -n 20 "$log" >&2
        die "apt-get install ${names[*]} failed: see $log"
    }
}

# download_folder NAME: named after the pom, so that a new version never mixes with an old one
download_folder() {
    local sum
    sum=$(sha256sum <"$resources/$1/pom.xml")
    printf '%s' "$cache/$1-${sum:0:12}"
}

downloaded() { [[ -d $(download_folder "$1") ]]; }

# download NAME GOAL: what the pom names, once for all folders
download() {
    if downloaded "$1"; then return 0; fi
    mkdir -p "$cache"
    (
        flock 8 # another folder's start may be at it
        if ! downloaded "$1"; then download_now "$@"; fi
    ) 8>"$cache/$1.lock"
}

download_now() {
    local name=$1 goal=$2 folder part
    folder=$(download_folder "$name")
    part=$folder.part
    say "downloading $name ..."
    rm -rf "$part" # of a download that was cut short
    mkdir "$part"
    cp "$resources/$name/pom.xml" "$part/" # Maven writes beside the pom
    mvn -B -ntp -f "$part/pom.xml" "dependency:$goal" "-DoutputDirectory=$part/lib" >"$part/maven.log" 2>&1 || {
        tail -n 20 "$part/maven.log" >&2
        die "downloading $name with Maven failed: see $part/maven.log"
    }
    mv "$part" "$folder"
}

# maven_if_needed NAME: prints mvn when there is something to download
maven_if_needed() { downloaded "$1" || printf ' mvn'; }
