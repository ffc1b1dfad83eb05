# shellcheck shell=bash disable=SC2154 # sourced: resources comes from servers.sh
# Apache Kafka, one broker that is its own controller (KRaft).

kafka_commands() { printf 'java%s' "$(maven_if_needed kafka)"; }
kafka_download() { download kafka copy-dependencies; }
kafka_roles() { printf 'kafka'; }
kafka_ports() { printf 'client controller'; }
kafka_exports() { say "export SITE_KAFKA_BROKERS=$(address kafka)"; }

kafka_configure() {
    local folder=$1
    render "$resources/kafka/server.properties" "FOLDER=$folder" "CLIENT_PORT=$(port kafka client)" \
        "CONTROLLER_PORT=$(port kafka controller)" >"$folder/conf/server.properties"
    printf '%s\n' "${SITE_SERVERS_KAFKA_PROPERTIES:-}" >>"$folder/conf/server.properties"
}

# kafka_command FOLDER: sets kafka_java. The native libraries of zstd and snappy are unpacked into tmp.
kafka_command() {
    kafka_java=("$(java_home)/bin/java" -Xmx512m -XX:+ExitOnOutOfMemoryError -XX:-UsePerfData
        "-Djava.io.tmpdir=$1/tmp" "-Dlog4j2.configurationFile=$resources/kafka/log4j2.properties"
        -cp "$(download_folder kafka)/lib/*")
}

kafka_launch() {
    local folder=$1
    local -a kafka_java
    kafka_command "$folder"
    if [[ ! -e $folder/data/meta.properties ]]; then
        # The id is "site_spider_test" in base64: any 16 bytes do for a cluster of one.
        "${kafka_java[@]}" kafka.tools.StorageTool format -t c2l0ZV9zcGlkZXJfdGVzdA \
            -c "$folder/conf/server.properties" >>"$folder/logs/kafka.log" 2>&1 || return 1
    fi
    launch "$folder" kafka "${kafka_java[@]}" kafka.Kafka "$folder/conf/server.properties"
}

kafka_ready() {
    grep -qs 'Kafka Server started' "$1/logs/kafka.log" && listening "$(port kafka client)"
}
