# shellcheck shell=bash disable=SC2154 # sourced: resources comes from servers.sh
# Elasticsearch, one node. It refuses to run as root, so root runs it as nobody.
#
# Secured, it speaks TLS only and knows the user `elastic`. Its package lacks three parts of text analysis that the index of
# API keys needs, so a small plugin supplies them.

nobody=65534

elasticsearch_commands() {
    printf 'java curl%s' "$(maven_if_needed elasticsearch)"
    if is_secure; then printf ' javac'; fi
}
elasticsearch_download() {
    download elasticsearch unpack-dependencies
    if is_secure; then elasticsearch_plugin; fi
}
elasticsearch_roles() { printf 'elasticsearch'; }
elasticsearch_ports() { printf 'http transport'; }
elasticsearch_exports() {
    if ! is_secure; then
        say "export SITE_ELASTICSEARCH_HOSTS=http://$(address elasticsearch)"
        return
    fi
    say "export SITE_ELASTICSEARCH_HOSTS=https://$(address elasticsearch)"
    say "export SITE_ELASTICSEARCH_OPTIONS='{\"ca_certs\": \"$(secret ca.pem)\", \"basic_auth\": [\"elastic\", \"$(password admin)\"]}'"
}
elasticsearch_home() { printf '%s\n' "$(download_folder elasticsearch)"/lib/elasticsearch-*; }

# elasticsearch_plugin: compiled once, beside the modules of the server that all folders share
elasticsearch_plugin() {
    local home made
    home=$(elasticsearch_home)
    [[ ! -e $home/plugins/security-analysis ]] || return 0
    made=$(mktemp -d "$home/plugins.XXXXXX")
    "$(java_home)/bin/javac" -cp "$home/lib/*" -d "$made/classes" "$resources/elasticsearch/SecurityAnalysis.java" ||
        die "the plugin of Elasticsearch cannot be compiled"
    mkdir -p "$home/plugins" "$made/plugin"
    python3 -m zipfile -c "$made/plugin/security-analysis.jar" "$made"/classes/*
    render "$resources/elasticsearch/plugin-descriptor.properties" "VERSION=${home##*-}" \
        >"$made/plugin/plugin-descriptor.properties"
    chmod -R a+rX "$made/plugin"
    mv -T "$made/plugin" "$home/plugins/security-analysis"
    rm -rf "$made"
}

elasticsearch_secure() {
    local folder=$1
    render "$resources/elasticsearch/secure.yml" >>"$folder/conf/elasticsearch.yml"
    cp "$(secret server.pem)" "$(secret server.key)" "$folder/conf/"
    [[ -e $folder/conf/elasticsearch.keystore ]] || password admin |
        ES_JAVA_HOME=$(java_home) ES_PATH_CONF=$folder/conf "$(elasticsearch_home)/bin/elasticsearch-keystore" \
            add --stdin --force bootstrap.password >/dev/null
}

elasticsearch_configure() {
    local folder=$1 secured=false
    if is_secure; then secured=true; fi
    render "$resources/elasticsearch/elasticsearch.yml" "FOLDER=$folder" "SECURED=$secured" \
        "HTTP_PORT=$(port elasticsearch http)" \
        "TRANSPORT_PORT=$(port elasticsearch transport)" >"$folder/conf/elasticsearch.yml"
    printf '%s\n' "${SITE_SERVERS_ELASTICSEARCH_YML:-}" >>"$folder/conf/elasticsearch.yml"
    cp "$resources/elasticsearch"/{jvm.options,log4j2.properties} "$folder/conf/"
    if is_secure; then elasticsearch_secure "$folder"; fi
    rm -f "$folder/tmp/server.pid"
    if ((EUID == 0)); then
        chown "$nobody:$nobody" "$folder"
        chown -R "$nobody:$nobody" "$folder"/{conf,data,logs,tmp}
    fi
}

# as_nobody CAPABILITIES: sets elasticsearch_as, the words before a command. The secure bit makes access(2), which Java
# asks, see the capabilities.
as_nobody() {
    elasticsearch_as=(setpriv "--reuid=$nobody" "--regid=$nobody" --clear-groups --securebits=+no_setuid_fixup
        "--inh-caps=$1" "--ambient-caps=$1" "--bounding-set=$1")
}

# choose_user FOLDER: sets elasticsearch_as to a user that the server accepts.
# A home, a checkout or a test's folder may be closed to nobody. Then the least capability that opens it is kept,
# rather than data moved elsewhere or the modes of somebody's folders changed.
choose_user() {
    local capabilities
    elasticsearch_as=()
    if ((EUID != 0)); then return 0; fi
    for capabilities in -all -all,+dac_read_search -all,+dac_override; do
        as_nobody "$capabilities"
        # shellcheck disable=SC2016 # the inner shell expands it
        if "${elasticsearch_as[@]}" bash -c '[[ -x $1 && -w $2 ]]' - \
            "$(elasticsearch_home)/bin/elasticsearch" "$1/data" 2>/dev/null; then
            return 0
        fi
    done
    complain "elasticsearch cannot run as root, and user $nobody may enter neither $1 nor $cache here:" \
        "set SITE_SERVERS_DIR and SITE_SERVERS_CACHE to folders that everybody may enter, such as /var/tmp/servers"
    return 1
}

elasticsearch_launch() {
    local folder=$1
    local -a elasticsearch_as
    choose_user "$folder" || return 1
    # -d: the launcher leaves when the server is up, and what stays is one process. The launcher forgets a temporary
    # folder at every start; JDK_JAVA_OPTIONS, unlike CLI_JAVA_OPTS, can tell it ours even with a space in the name.
    launch "$folder" elasticsearch "${elasticsearch_as[@]}" env -u JAVA_HOME "ES_JAVA_HOME=$(java_home)" \
        "ES_PATH_CONF=$folder/conf" "ES_TMPDIR=$folder/tmp" \
        "JDK_JAVA_OPTIONS=-XX:-UsePerfData '-Djava.io.tmpdir=$folder/tmp'" \
        "ES_JAVA_OPTS=-Xms512m -Xmx512m ${SITE_SERVERS_ELASTICSEARCH_JAVA_OPTS:-}" \
        "$(elasticsearch_home)/bin/elasticsearch" -d -p "$folder/tmp/server.pid"
}

# The port opens before the shards are recovered, so only the health counts.
elasticsearch_ready() {
    local folder=$1 server
    server=$(cat "$folder/tmp/server.pid" 2>/dev/null) || return 1
    remember "$folder/elasticsearch.pid" "$server" || return 1 # in the place of the launcher, whose group it shares
    local scheme=http
    local -a how=()
    if is_secure; then
        scheme=https
        printf 'user = "elastic:%s"\n' "$(password admin)" >"$folder/tmp/curl.conf"
        how=(--cacert "$(secret ca.pem)" --config "$folder/tmp/curl.conf")
    fi
    curl -fs --noproxy '*' --max-time 5 -o "$folder/tmp/health.json" "${how[@]}" \
        "$scheme://$(address elasticsearch)/_cluster/health?wait_for_status=yellow&timeout=3s"
}
