"""Reads from the settings how to reach HBase's Thrift server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Self

from site_spider.adapters.hbase.connection import CLIENT_ERRORS, HBaseConnection, explained
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.options import SettingsView, choice, integer, mapping, seconds, text
from site_spider.secrets import without_secrets

HOST = "SITE_HBASE_HOST"
PORT = "SITE_HBASE_PORT"
TABLE = "SITE_HBASE_TABLE"
ITEMS_TABLE = "SITE_HBASE_ITEMS_TABLE"
OPTIONS = "SITE_HBASE_OPTIONS"
ROW_KEYS = ("url_id", "salted", "reversed_host")
LONGEST_TIMEOUT_SECONDS = 25.0  # see WRITE_SECONDS of the sink

_TABLE_NAME = re.compile(r"(?:\w+:)?\w[\w.-]*", re.ASCII)
_ALLOWED_OPTIONS = {"transport", "protocol"}


@dataclass(frozen=True, slots=True)
class HBaseOptions:
    """The checked settings."""

    host: str
    port: int
    table: str
    row_key: str
    cell_bytes: int
    timeout_seconds: float
    options: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """Read and check them. Raises ConfigError."""
        checked = cls(
            host=text(settings, HOST, required=True),
            port=integer(settings, PORT, 1, 65_535),
            table=_table_name(settings),
            row_key=choice(settings, "SITE_HBASE_ROW_KEY", ROW_KEYS),
            cell_bytes=integer(settings, "SITE_HBASE_CELL_BYTES", 1000),
            timeout_seconds=seconds(settings, "SITE_HBASE_TIMEOUT_SECONDS", 1, LONGEST_TIMEOUT_SECONDS),
            options=_client_options(settings),
        )
        checked._client(1.0)  # shows at once whether the options are right
        return checked

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        """The same for the table of items. Raises ConfigError.

        Their keys are always plain: what a row key is made of is known of pages only.
        """
        results = cls.from_settings(settings)
        table = _table_name(settings, ITEMS_TABLE)
        if table == results.table:
            raise ConfigError(f"{ITEMS_TABLE} and {TABLE} are both {table!r}: name two tables.")
        return replace(results, table=table, row_key="url_id")

    def connect(self, timeout_seconds: float) -> HBaseConnection:
        """A new connection whose calls may take `timeout_seconds`. Raises SinkUnavailable."""
        connection = self._client(timeout_seconds)
        try:
            connection.open()
        except CLIENT_ERRORS as error:
            raise self.unavailable(explained(error)) from error
        return connection

    def unavailable(self, reason: str) -> SinkUnavailable:
        """The error to raise when the server does not do its work."""
        return SinkUnavailable(
            f"{HOST} and {PORT} are {self.host}:{self.port}, where HBase's Thrift server does not answer"
            f" as it should: {reason}"
        )

    def _client(self, timeout_seconds: float) -> HBaseConnection:
        try:
            return HBaseConnection(
                self.host, self.port, timeout=int(timeout_seconds * 1000), autoconnect=False, **self.options
            )
        except (TypeError, ValueError) as error:
            reason = without_secrets(str(error), OPTIONS, self.options)
            raise ConfigError(f"{OPTIONS} is not what the client takes: {reason}") from None


def _table_name(settings: SettingsView, setting: str = TABLE) -> str:
    name = text(settings, setting, required=True)
    if not _TABLE_NAME.fullmatch(name):
        raise ConfigError(
            f"{setting} is {name!r}, but a table has a name of ASCII letters, digits, _ . and -, "
            "or namespace:name, and neither begins with - or a dot."
        )
    return name


def _client_options(settings: SettingsView) -> dict[str, Any]:
    options = mapping(settings, OPTIONS)
    if unknown := sorted(options.keys() - _ALLOWED_OPTIONS):
        allowed = " and ".join(sorted(_ALLOWED_OPTIONS))
        raise ConfigError(f"{OPTIONS} names {unknown[0]!r}, but may set {allowed} only.")
    return options
