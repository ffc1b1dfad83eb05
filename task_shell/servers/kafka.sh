# shellcheck shell=bash disable=SC2154 # sourced: resources comes from servers.sh
# Apache Kafka, one broker that is its own controller (KRaft).
#
# Secured, it has two listeners: SASL_SSL for passwords (SCRAM), SSL for client certificates. `admin` may do everything,
# `crawler` what ACLs allow, and at first that is nothing.

kafka_commands() { printf 'java%s' "$(maven_if_needed kafka)"; }
kafka_download() { download kafka copy-dependencies; }
kafka_roles() { printf 'kafka'; }
kafka_ports() { if is_secure; then printf 'client controller certificates'; else printf 'client controller'; fi; }

kafka_exports() {
    local name
    say "export SITE_KAFKA_BROKERS=$(address kafka)"
    if ! is_secure; then return; fi
    say "export SITE_KAFKA_OPTIONS='$(kafka_password_options crawler)'"
    say "export SITE_SERVERS_KAFKA_ADMIN_OPTIONS='$(kafka_password_options admin)'"
    say "export SITE_SERVERS_KAFKA_CERTIFICATE_BROKERS=127.0.0.1:$(port kafka certificates)"
    say "export SITE_SERVERS_KAFKA_CERTIFICATE_OPTIONS='$(kafka_certificate_options crawler)'"
}

# kafka_password_options USER: as JSON
kafka_password_options() {
    printf '{"security.protocol": "SASL_SSL", "ssl.ca.location": "%s", "sasl.mechanism": "SCRAM-SHA-512", ' "$(secret ca.pem)"
    printf '"sasl.username": "%s", "sasl.password": "%s"}' "$1" "$(password "$1")"
}

kafka_certificate_options() {
    printf '{"security.protocol": "SSL", "ssl.ca.location": "%s", ' "$(secret ca.pem)"
    printf '"ssl.certificate.location": "%s", "ssl.key.location": "%s"}' "$(secret "$1.pem")" "$(secret "$1.key")"
}

kafka_configure() {
    local folder=$1
    render "$resources/kafka/server.properties" "FOLDER=$folder" "CLIENT_PORT=$(port kafka client)" \
        "CONTROLLER_PORT=$(port kafka controller)" >"$folder/conf/server.properties"
    if is_secure; then
        render "$resources/kafka/secure.properties" "SECRETS=$servers_dir/secrets" \
            "CLIENT_PORT=$(port kafka client)" "CERTIFICATE_PORT=$(port kafka certificates)" \
            "CONTROLLER_PORT=$(port kafka controller)" "PASSWORD=$(password admin)" >>"$folder/conf/server.properties"
    fi
    printf '%s\n' "${SITE_SERVERS_KAFKA_PROPERTIES:-}" >>"$folder/conf/server.properties"
}

# kafka_command FOLDER: sets kafka_java. The native libraries of zstd and snappy are unpacked into tmp.
kafka_command() {
    kafka_java=("$(java_home)/bin/java" -Xmx512m -XX:+ExitOnOutOfMemoryError -XX:-UsePerfData
        "-Djava.io.tmpdir=$1/tmp" "-Dlog4j2.configurationFile=$resources/kafka/log4j2.properties"
        -cp "$(download_folder kafka)/lib/*")
}

# kafka_users: sets kafka_scram, the users that the log is formatted with
kafka_users() {
    local name
    kafka_scram=()
    if ! is_secure; then return 0; fi
    for name in admin crawler; do
        kafka_scram+=(--add-scram "SCRAM-SHA-512=[name=$name,password=$(password "$name")]")
    done
}

kafka_launch() {
    local folder=$1
    local -a kafka_java kafka_scram
    kafka_command "$folder"
    kafka_users
    if [[ ! -e $folder/data/meta.properties ]]; then
        # The id is "site_spider_test" in base64: any 16 bytes do for a cluster of one.
        "${kafka_java[@]}" kafka.tools.StorageTool format -t c2l0ZV9zcGlkZXJfdGVzdA "${kafka_scram[@]}" \
            -c "$folder/conf/server.properties" >>"$folder/logs/kafka.log" 2>&1 || return 1
    fi
    launch "$folder" kafka "${kafka_java[@]}" kafka.Kafka "$folder/conf/server.properties"
}

kafka_ready() {
    grep -qs 'Kafka Server started' "$1/logs/kafka.log" && listening "$(port kafka client)"
}
