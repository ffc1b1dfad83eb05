"""Reads from the settings how to reach Elasticsearch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from elasticsearch import ElasticsearchWarning

from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.options import SettingsView, mapping, names, text
from site_spider.secrets import without_secrets

C = TypeVar("C")

HOSTS = "SITE_ELASTICSEARCH_HOSTS"
OPTIONS = "SITE_ELASTICSEARCH_OPTIONS"
REQUEST_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ElasticsearchOptions:
    """The checked settings; `address` is for people and holds no password."""

    hosts: tuple[str, ...] = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    address: str

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """Read and check them. Raises ConfigError."""
        hosts = names(settings, HOSTS)
        if not hosts:
            raise ConfigError(f"{HOSTS} is empty, but must be set: http://host:9200, or several with commas.")
        address = ",".join(_checked(number, host) for number, host in enumerate(hosts, 1))
        options = {name: _as_tuple(value) for name, value in mapping(settings, OPTIONS).items()}
        if "hosts" in options or "cloud_id" in options:
            raise ConfigError(f"{OPTIONS} must not name hosts: set {HOSTS} instead.")
        return cls(tuple(host.rstrip("/") for host in hosts), options, address)

    def client(self, kind: Callable[..., C], **more: Any) -> C:
        """Make a client, without connecting. Raises ConfigError for options that it does not take.

        One that does not answer is tried again by our own back-off, so the client itself
        only goes on to the next host when a connection fails.
        """
        defaults = {
            "request_timeout": REQUEST_TIMEOUT_SECONDS,
            "max_retries": len(self.hosts) - 1,
            "retry_on_status": (),
            "retry_on_timeout": False,
        }
        _quieten_client()
        try:
            return kind(hosts=list(self.hosts), **{**defaults, **more, **self.options})
        except (TypeError, ValueError, OSError) as error:
            reason = without_secrets(str(error), OPTIONS, self.options)
            raise ConfigError(f"{OPTIONS} is not what the client takes: {reason}") from None

    def unavailable(self, reason: str) -> SinkUnavailable:
        """The error to raise when the server does not do its work."""
        return SinkUnavailable(f"{HOSTS} is {self.address!r}, which does not answer as it should: {reason}")

    def refused(self, reason: str, remedy: str) -> ConfigError:
        """The error to raise when waiting would not help."""
        return ConfigError(
            f"{HOSTS} is {self.address!r}, which cannot be used: {reason}. Set in {OPTIONS} {remedy}."
        )


def _quieten_client() -> None:
    """Keep the client from writing a line for every request, and one for each try during an outage.

    A warning that the server sends would be printed raw, and each new one kept for ever.
    """
    warnings.simplefilter("ignore", ElasticsearchWarning)
    for name, level in (
        ("elastic_transport.transport", logging.WARNING),
        ("elastic_transport", logging.ERROR),
    ):
        client_logger = logging.getLogger(name)
        if client_logger.level == logging.NOTSET:  # else somebody wants to see them
            client_logger.setLevel(level)


def index_name(settings: SettingsView, setting: str) -> str:
    """The name of an index. Raises ConfigError for one that Elasticsearch would refuse."""
    name = text(settings, setting, required=True)
    if name != name.lower() or name[0] in "-_+." or any(sign in name for sign in '\\/*?"<>| ,#:'):
        raise ConfigError(
            f"{setting} is {name!r}, but an index has a lower-case name without blanks or any of"
            ' \\/*?"<>|,#: and does not begin with - _ + or a dot.'
        )
    return name


def items_index(settings: SettingsView) -> str:
    """SITE_ITEMS_INDEX. Raises ConfigError."""
    name = index_name(settings, "SITE_ITEMS_INDEX")
    if name == text(settings, "SITE_RESULTS_INDEX"):
        raise ConfigError(f"SITE_ITEMS_INDEX and SITE_RESULTS_INDEX are both {name!r}: name two indices.")
    return name


def _checked(number: int, host: str) -> str:
    """The host without its password. Raises ConfigError, without the host: what is where is not known."""
    try:
        parts = urlsplit(host)
        complete = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:
        complete = False
    if not complete:
        raise ConfigError(
            f"{HOSTS} cannot be used: number {number} must be http://host:port or https://host:port."
        )
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _as_tuple(value: Any) -> Any:
    """JSON has no tuples, which the client wants for basic_auth and api_key."""
    return tuple(value) if isinstance(value, list) else value
