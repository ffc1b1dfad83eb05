"""Reads SITE_REDIS_URL, and makes clients of it."""

from __future__ import annotations

from urllib.parse import urlsplit

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from site_spider.errors import ConfigError

_SCHEMES = ("redis", "rediss", "unix")
_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 5.0


def client_of(url: str, address: str) -> Redis:
    """A client, not connected yet. Raises ConfigError."""
    try:
        return Redis.from_url(
            url,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=_ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 1),  # once, for connections that the server has closed meanwhile
            protocol=2,  # all that is needed here, and known to every server
        )
    except (ValueError, TypeError):
        raise ConfigError(
            f"SITE_REDIS_URL leads to {address!r}, but has options behind a question mark that the client "
            "does not take, or with values of a wrong type. Leave them out."
        ) from None


def address_of(url: str) -> str:
    """The URL without what may be secret: user, password, and options. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        port, needs_host = parts.port, parts.scheme != "unix"  # asking for the port checks it
    except ValueError:
        raise _refused() from None
    if parts.scheme not in _SCHEMES or port == 0 or (needs_host and not parts.hostname):
        raise _refused()
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _refused() -> ConfigError:
    return ConfigError(
        "SITE_REDIS_URL cannot be used (its value, which may hold a password, is not shown): "
        "set it to redis://host:port/0, redis://user:password@host:port/0 or rediss://... for TLS."
    )
