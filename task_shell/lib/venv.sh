# shellcheck shell=bash disable=SC2154 # sourced: here and project come from the scripts, and say and die
# The virtual environment of the project: made when it is missing, brought up to date when the requirements change.

# shellcheck source=task_shell/lib/packages.sh
source "$here/lib/packages.sh"

pythons=(python3 python3.11 python3.12 python3.13 python3.14 /usr/bin/python3)

# usable PYTHON: new enough, and able to make a virtual environment with pip
usable() {
    "$1" -I -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for python in "${pythons[@]}"; do
        if usable "$python"; then return 0; fi
    done
    return 1
}

need_python() {
    if find_python; then return; fi
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
        die "Python 3.11 or newer with its venv module is missing; on Debian: sudo apt-get install python3 python3-venv"
    fi
    say "Installing python3 and python3-venv ..."
    install_packages python3 python3-venv >/dev/null || die "apt-get could not install python3 and python3-venv"
    find_python || die "this Debian has no Python 3.11 or newer; install one, so that python3.11 or newer is on the PATH"
}

# stamp FILE: the file in the environment that says with which state of FILE it was installed
stamp() { printf '%s/.installed-%s' "$venv" "$(basename "$1")"; }

state() { sha256sum "$project/$1"; }

is_installed() { [[ $(cat "$(stamp "$1")" 2>/dev/null) == "$(state "$1")" ]]; }

# was_moved: its scripts name the Python of another place; where it is a link, that is as it was
was_moved() { [[ ! -L $venv ]] && grep -qs '^[0-9a-f]' "$(stamp "$1")" && ! grep -qF "  $project/" "$(stamp "$1")"; }

# prepare_venv REQUIREMENTS_FILE...: sets venv
prepare_venv() {
    venv=$project/.venv
    local file
    local -a missing=() arguments=()
    exec 8<"$project" && flock 8 # another script may be at it
    if ! usable "$venv/bin/python" || was_moved requirements.txt; then make_venv; fi
    for file in "$@"; do
        is_installed "$file" || missing+=("$file")
    done
    if ((${#missing[@]} > 0)); then
        for file in "$@"; do arguments+=(-r "$file"); done # all of them, so that they agree with each other
        install_requirements "${arguments[@]}"
        for file in "${missing[@]}"; do state "$file" >"$(stamp "$file")"; done
    fi
    exec 8<&-
}

make_venv() {
    need_python
    say "Making .venv with $("$python" --version) ..."
    rm -rf "$venv"
    "$python" -m venv "$venv" || die "$python cannot make a virtual environment in $venv"
}

install_requirements() {
    local began=$SECONDS
    say "Installing the requirements into .venv ..."
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "$@" </dev/null ||
        die "pip could not install the requirements: see above"
    say "Installed in $((SECONDS - began)) s."
}
