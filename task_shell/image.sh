#!/usr/bin/env bash
# Builds the image of the Dockerfile with buildah, where there is no Docker and no registry: see usage below.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd -P)
project=$(dirname "$here")
base=docker.io/library/python:3.11-slim # as the Dockerfile names it
bundle=/etc/ssl/certs/ca-certificates.crt # of Debian
suite=bookworm                          # the Debian whose Python is 3.11

usage() {
    cat <<'END'
Usage: image.sh [TAG] [--build-arg NAME=VALUE ...]

Builds the image with buildah (default TAG: site-spider), which needs no daemon; the Dockerfile has the arguments.
Where the base image is neither there nor can be pulled, a minimal Debian with its Python takes its place, made by
debootstrap. On Debian, as root: apt-get install podman buildah runc debootstrap.
END
}

say() { printf '%s\n' "$*"; }
die() {
    printf 'image.sh: %s\n' "$1" >&2
    exit 1
}

make_base() {
    local root
    say "Making the base image with debootstrap ..."
    root=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder as it is now: the variable is gone when the script ends
    trap "rm -rf '$root' '$root.log'" EXIT
    debootstrap --variant=minbase --include=python3,python3-venv "$suite" "$root" >"$root.log" 2>&1 ||
        die "debootstrap failed: $(tail -n 3 "$root.log")"
    tar -C "$root" -c . | podman import - "$base" >/dev/null
}

main() {
    case ${1:-} in
    -h | --help) usage && exit 0 ;;
    esac
    local program tag=site-spider missing=() certificates=()
    if (($# > 0)) && [[ $1 != -* ]]; then tag=${1:-$tag} && shift; fi
    for program in podman buildah debootstrap runc; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    if ((${#missing[@]} > 0)); then die "missing: ${missing[*]}; on Debian: apt-get install ${missing[*]}"; fi
    podman image exists "$base" || podman pull --quiet "$base" >/dev/null 2>&1 || make_base
    # A machine behind a proxy of its own trusts certificates that the base image does not have.
    if [[ -r ${PIP_CERT:-$bundle} ]]; then
        certificates=(--volume "${PIP_CERT:-$bundle}:$bundle:ro" --env "PIP_CERT=$bundle")
    fi
    buildah bud --quiet --format docker --pull-never --isolation chroot --network host --layers \
        "${certificates[@]}" --tag "$tag" "$@" "$project"
}

main "$@"
