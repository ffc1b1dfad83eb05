# shellcheck shell=bash # sourced
# Packages of Debian, installed without starting the services in them.

# Some machines start a package's service on installation; it would hold the standard port and survive us.
forbid_services() {
    [[ ! -e /usr/sbin/policy-rc.d ]] || return 0
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
}

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }

# install_packages NAME...: as root. A newer Debian has another Java.
install_packages() (
    forbid_services
    apt update
    if ! apt-cache show openjdk-17-jre-headless >/dev/null 2>&1; then set -- "${@/#openjdk-17-/default-}"; fi
    apt install -y --no-install-recommends "$@"
)
