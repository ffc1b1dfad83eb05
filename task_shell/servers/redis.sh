# shellcheck shell=bash disable=SC2154 # sourced: resources comes from servers.sh
# Redis, Debian's.

redis_commands() { printf 'redis-server redis-cli'; }
redis_download() { :; }
redis_roles() { printf 'redis'; }
redis_ports() { printf 'client'; }
redis_exports() { say "export SITE_REDIS_URL=redis://$(address redis)/0"; }

redis_configure() {
    render "$resources/redis/redis.conf" "FOLDER=$1" "PORT=$(port redis client)" >"$1/conf/redis.conf"
}

redis_launch() { launch "$1" redis redis-server "$1/conf/redis.conf"; }

# While Redis reads its data back it answers LOADING.
redis_ready() { [[ $(redis-cli -h 127.0.0.1 -p "$(port redis client)" ping 2>/dev/null) == PONG ]]; }
