"""TLS for our own connections, by Scrapy's settings and OpenSSL's trusted roots."""

from __future__ import annotations

import ssl

from scrapy.settings import BaseSettings

from site_spider import options
from site_spider.errors import ConfigError

_VERSIONS = {
    "TLSv1.0": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}


def tls_context(settings: BaseSettings) -> ssl.SSLContext:
    """As DOWNLOAD_VERIFY_CERTIFICATES, DOWNLOAD_TLS_MIN_VERSION, DOWNLOAD_TLS_MAX_VERSION and
    DOWNLOADER_CLIENT_TLS_CIPHERS say. Raises ConfigError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if options.boolean(settings, "DOWNLOAD_VERIFY_CERTIFICATES"):
        context.load_default_certs()
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    lowest, highest = (
        _version(settings, "DOWNLOAD_TLS_MIN_VERSION"),
        _version(settings, "DOWNLOAD_TLS_MAX_VERSION"),
    )
    if lowest is not None:
        context.minimum_version = lowest
    if highest is not None:
        context.maximum_version = highest
    ciphers = settings.get("DOWNLOADER_CLIENT_TLS_CIPHERS")
    if ciphers:
        try:
            context.set_ciphers(ciphers)
        except ssl.SSLError as error:
            raise ConfigError(
                f"DOWNLOADER_CLIENT_TLS_CIPHERS is {ciphers!r}, which OpenSSL does not know: {error}."
            ) from error
    return context


def _version(settings: BaseSettings, name: str) -> ssl.TLSVersion | None:
    value = settings.get(name)
    if value is None or value == "":
        return None
    if value not in _VERSIONS:
        raise ConfigError(f"{name} is {value!r}, but must be one of {', '.join(_VERSIONS)}.")
    return _VERSIONS[value]
