"""TLS for our own connections, by Scrapy's settings and the trusted roots of Python's ssl."""

from __future__ import annotations

import ssl
from contextlib import suppress

from OpenSSL import SSL
from scrapy.settings import BaseSettings

from site_spider import options
from site_spider.engine.openssl import refuse_partial_wildcards, set_groups
from site_spider.errors import ConfigError

_VERSIONS = {
    "TLSv1.0": SSL.TLS1_VERSION,
    "TLSv1.1": SSL.TLS1_1_VERSION,
    "TLSv1.2": SSL.TLS1_2_VERSION,
    "TLSv1.3": SSL.TLS1_3_VERSION,
}
# Python's, for a setting that is empty
_CIPHERS = "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
# OpenSSL's own list begins with ML-KEM, a share of which costs 100 µs; the last three are for odd servers
_GROUPS = b"X25519:P-256:P-384:P-521:X448:ffdhe2048:ffdhe3072"


def tls_context(settings: BaseSettings) -> SSL.Context:
    """As DOWNLOAD_VERIFY_CERTIFICATES, DOWNLOAD_TLS_MIN_VERSION, DOWNLOAD_TLS_MAX_VERSION and
    DOWNLOADER_CLIENT_TLS_CIPHERS say. Raises ConfigError.
    """
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_options(SSL.OP_ALL & ~SSL.OP_DONT_INSERT_EMPTY_FRAGMENTS | SSL.OP_NO_COMPRESSION)
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)  # an idle connection needs none
    set_groups(context, _GROUPS)
    if options.boolean(settings, "DOWNLOAD_VERIFY_CERTIFICATES"):
        context.set_verify(SSL.VERIFY_PEER)
        refuse_partial_wildcards(context)
        _trust(context)
    context.set_min_proto_version(_version(settings, "DOWNLOAD_TLS_MIN_VERSION", SSL.TLS1_2_VERSION))
    context.set_max_proto_version(_version(settings, "DOWNLOAD_TLS_MAX_VERSION", 0))
    ciphers = settings.get("DOWNLOADER_CLIENT_TLS_CIPHERS") or _CIPHERS
    try:
        context.set_cipher_list(str(ciphers).encode())
    except SSL.Error as error:
        raise ConfigError(
            f"DOWNLOADER_CLIENT_TLS_CIPHERS is {ciphers!r}, which OpenSSL does not know: "
            "no cipher can be selected."
        ) from error
    return context


def _trust(context: SSL.Context) -> None:
    """What Python trusts: SSL_CERT_FILE and SSL_CERT_DIR, or the system's. An empty file adds nothing."""
    paths = ssl.get_default_verify_paths()
    for file, folder in ((paths.cafile, None), (None, paths.capath)):
        if file or folder:
            with suppress(SSL.Error):
                context.load_verify_locations(file, folder)


def _version(settings: BaseSettings, name: str, default: int) -> int:
    value = settings.get(name)
    if value is None or value == "":
        return default
    if value not in _VERSIONS:
        raise ConfigError(f"{name} is {value!r}, but must be one of {', '.join(_VERSIONS)}.")
    return _VERSIONS[value]
