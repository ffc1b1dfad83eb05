# shellcheck shell=bash disable=SC2154 # sourced: resources comes from servers.sh
# HBase, standalone (master, region server and ZooKeeper in one process), and its Thrift server.

hbase_commands() { printf 'java%s' "$(maven_if_needed hbase)"; }
hbase_download() { download hbase copy-dependencies; }
hbase_roles() { printf 'master thrift'; }
hbase_ports() { printf 'thrift zookeeper'; }

hbase_exports() {
    say "export SITE_HBASE_HOST=127.0.0.1"
    say "export SITE_HBASE_PORT=$(port hbase thrift)"
}

hbase_configure() {
    [[ $1 != *[[:space:]]* ]] || die "HBase takes its folder as a URL: choose a SITE_SERVERS_DIR without spaces"
    # ZooKeeper remembers the sessions of the last run, and the new master would wait 10 s for them to expire.
    # Nothing else is kept there: tables and rows are in data/hbase.
    rm -rf "$1/data/zk"
}

# hbase_jvm FOLDER ROLE FLAG CLASS: its settings are those of hbase-site.xml, filled from the -D properties
hbase_jvm() {
    launch "$1" "$2" "$(java_home)/bin/java" "$3" -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
        -XX:+ExitOnOutOfMemoryError -XX:-UsePerfData -Djava.net.preferIPv4Stack=true \
        --add-opens java.base/java.nio=ALL-UNNAMED "-Djava.io.tmpdir=$1/tmp" "-Dserver.data=$1/data" \
        "-Dserver.zkport=$(port hbase zookeeper)" "-Dserver.thriftport=$(port hbase thrift)" \
        -cp "$resources/hbase:$(download_folder hbase)/lib/*" "$4" start
}

hbase_launch() { hbase_jvm "$1" master -Xmx1g org.apache.hadoop.hbase.master.HMaster; }

# The Thrift server gives up when there is no ZooKeeper yet, so it follows the master.
hbase_ready() {
    grep -qs 'Master has completed initialization' "$1/logs/master.log" || return 1
    if [[ ! -e $1/thrift.pid ]]; then
        hbase_jvm "$1" thrift -Xmx512m org.apache.hadoop.hbase.thrift.ThriftServer || return 1
    fi
    grep -qs 'starting HBase ThreadPool Thrift server' "$1/logs/thrift.log" && listening "$(port hbase thrift)"
}
