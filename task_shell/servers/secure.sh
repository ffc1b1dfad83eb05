# shellcheck shell=bash disable=SC2154 # sourced: servers_dir comes from servers.sh
# What secured servers share: a certificate authority, certificates, passwords, all in $servers_dir/secrets.

is_secure() { [[ -e $servers_dir/secrets/ca.pem ]]; }

secret() { printf '%s' "$servers_dir/secrets/$1"; }

password() { cat "$(secret "$1.password")"; }

# make_secrets: once for the folder; servers that have run there without must not find them
make_secrets() {
    local folder name
    if is_secure; then return 0; fi
    for name in "${known[@]}"; do
        [[ ! -e $servers_dir/$name/ports ]] ||
            die "$name has run in $servers_dir without --secure: choose another SITE_SERVERS_DIR"
    done
    folder=$servers_dir/secrets.new
    rm -rf "$folder"
    mkdir -p "$folder"
    for name in admin crawler; do openssl rand -hex 16 >"$folder/$name.password"; done
    make_authority "$folder"
    make_certificate "$folder" server "/CN=127.0.0.1" "subjectAltName=IP:127.0.0.1,DNS:localhost"
    make_certificate "$folder" crawler "/CN=crawler" "extendedKeyUsage=clientAuth"
    make_certificate "$folder" admin "/CN=admin" "extendedKeyUsage=clientAuth"
    mv "$folder" "$servers_dir/secrets"
}

# Certificates say what clients ask for that hold to RFC 5280, as those of Python 3.13: whose key it is, and what for.
make_authority() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 365 -subj "/CN=site_spider test" \
        -addext keyUsage=critical,keyCertSign,cRLSign -keyout "$1/ca.key" -out "$1/ca.pem" 2>/dev/null
}

# make_certificate FOLDER NAME SUBJECT EXTENSION: NAME.key and NAME.pem, and both in NAME-pair.pem, as Kafka wants them
make_certificate() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "$3" -keyout "$1/$2.key" \
        -out "$1/$2.csr" 2>/dev/null
    openssl x509 -req -in "$1/$2.csr" -CA "$1/ca.pem" -CAkey "$1/ca.key" -CAcreateserial -days 365 \
        -extfile <(printf '%s\n' subjectKeyIdentifier=hash authorityKeyIdentifier=keyid "$4") -out "$1/$2.pem" 2>/dev/null
    cat "$1/$2.key" "$1/$2.pem" >"$1/$2-pair.pem"
    rm "$1/$2.csr"
}
