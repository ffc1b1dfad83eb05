# shellcheck shell=bash disable=SC2154 # sourced: resources comes from servers.sh
# Redis, Debian's. Secured, it speaks TLS only; `admin` may do everything, `crawler` at first nothing.

redis_commands() { printf 'redis-server redis-cli'; }
redis_download() { :; }
redis_roles() { printf 'redis'; }
redis_ports() { printf 'client'; }

redis_exports() {
    if ! is_secure; then
        say "export SITE_REDIS_URL=redis://$(address redis)/0"
        return
    fi
    say "export SITE_REDIS_URL='$(redis_url crawler)'"
    say "export SITE_SERVERS_REDIS_ADMIN_URL='$(redis_url admin)'"
}

redis_url() {
    printf 'rediss://%s:%s@%s/0?ssl_ca_certs=%s' "$1" "$(password "$1")" "$(address redis)" "$(secret ca.pem)"
}

redis_configure() {
    render "$resources/redis/redis.conf" "FOLDER=$1" "PORT=$(port redis client)" >"$1/conf/redis.conf"
    if ! is_secure; then return; fi
    render "$resources/redis/secure.conf" "SECRETS=$servers_dir/secrets" "PORT=$(port redis client)" \
        >>"$1/conf/redis.conf"
    # What is granted while it runs is saved here, and kept.
    [[ -e $1/data/users.acl ]] || render "$resources/redis/users.acl" "ADMIN=$(password admin)" \
        "CRAWLER=$(password crawler)" >"$1/data/users.acl"
    printf 'aclfile "%s"\n' "$1/data/users.acl" >>"$1/conf/redis.conf"
}

redis_launch() { launch "$1" redis redis-server "$1/conf/redis.conf"; }

# While Redis reads its data back it answers LOADING.
redis_ready() {
    local -a how=(-h 127.0.0.1 -p "$(port redis client)")
    if is_secure; then
        how+=(--tls --cacert "$(secret ca.pem)" --user admin --no-auth-warning)
        export REDISCLI_AUTH
        REDISCLI_AUTH=$(password admin)
    fi
    [[ $(redis-cli "${how[@]}" ping 2>/dev/null) == PONG ]]
}
