"""One connection to HBase's Thrift server, and what its errors mean."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import happybase
import Hbase_thrift  # type: ignore[import-not-found] # made by happybase of an interface file
from thriftpy2.protocol.cybin import ProtocolError  # type: ignore[attr-defined] # compiled, without types
from thriftpy2.thrift import TApplicationException, TClient, TException
from thriftpy2.transport import TSocket, TTransportException

from site_spider.contracts.sink import Answer, Verdict
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.options import SettingsView, choice, integer, mapping, seconds, text
from site_spider.redaction import without_secrets
from site_spider.results.document import result_fields

CONNECT_SECONDS = 5.0

# What a broken or confused connection raises; all but the first three when an answer makes no sense.
CLIENT_ERRORS = (
    TException,
    OSError,
    EOFError,
    ValueError,
    AssertionError,
    ProtocolError,
    MemoryError,  # at once: the client asks for all that a length promises
    RecursionError,
    TypeError,
    LookupError,
)

_TOO_LARGE = ("KeyValue size too large", "exceeds limit of")  # in the Thrift server, in the region server


class HBaseConnection(happybase.Connection):  # type: ignore[misc] # the client has no types
    """The client's own connection, but connecting has a timeout of its own, and one can be changed."""

    def _refresh_thrift_client(self) -> None:
        self._socket = TSocket(  # type: ignore[no-untyped-call]
            host=self.host,
            port=self.port,
            socket_timeout=self.timeout,
            connect_timeout=min(self.timeout, CONNECT_SECONDS * 1000),
        )
        self.transport = self._transport_class(self._socket)
        protocol = self._protocol_class(self.transport, decode_response=False)
        self.client = TClient(Hbase_thrift.Hbase, protocol)

    def open(self) -> None:
        """Over IPv4 where the host has an address of it, as a server may listen there alone."""
        self._socket.socket_family = min(found[0] for found in socket.getaddrinfo(self.host, self.port))
        super().open()

    def set_timeout(self, seconds: float) -> None:
        self._socket.set_timeout(int(seconds * 1000))  # type: ignore[no-untyped-call]

    def check_and_put(self, table: str, column: str, key: bytes, old: str | None, new: str) -> bool:
        """Set a cell that has a value, or (None) does not exist. Raises one of CLIENT_ERRORS."""
        name = column.encode()
        change = Hbase_thrift.Mutation(column=name, value=new.encode())
        return bool(self.client.checkAndPut(table.encode(), key, name, old and old.encode(), change, {}))


def explained(error: BaseException) -> str:
    """An error in one line: Java sends its whole stack, and str() of some errors raises another."""
    message = getattr(error, "message", None)
    if isinstance(message, bytes):
        message = message.decode("utf-8", "replace")
    if not isinstance(message, str) or not message:
        return repr(error)
    line = f"{type(error).__name__}: {message.splitlines()[0]}"
    if isinstance(error, TTransportException) and isinstance(error.__context__, OSError):
        line += f" ({error.__context__})"  # the client drops it
    return line


def is_from_hbase(error: BaseException) -> bool:
    """Whether HBase had trouble, rather than the connection to its Thrift server."""
    return isinstance(error, Hbase_thrift.IOError)


class Refusal(Exception):
    """The server refuses a call for what is in it; `verdict` is for a row that is alone in it."""

    def __init__(self, reason: str, answer: Answer, *, too_large: bool = False) -> None:
        super().__init__(reason)
        self.verdict = Verdict(answer, reason)
        self.too_large = too_large  # a cell is larger than the server takes


def refusal_in(error: BaseException) -> Refusal | None:
    """None when the error says nothing of what is in a call."""
    too_large = any(_says(error, words) for words in _TOO_LARGE)
    if isinstance(error, Hbase_thrift.IllegalArgument) or (is_from_hbase(error) and too_large):
        return Refusal(explained(error), Answer.REJECTED, too_large=too_large)
    if isinstance(error, TApplicationException) and error.type == TApplicationException.INTERNAL_ERROR:
        return Refusal(explained(error), Answer.RETRY)  # nobody thought of it: perhaps a row's fault
    return None


def is_table_there(error: BaseException) -> bool:
    """Whether a table could not be created because somebody else has just done so."""
    return isinstance(error, Hbase_thrift.AlreadyExists) or _says(error, "TableExistsException")


def _says(error: BaseException, words: str) -> bool:
    message = getattr(error, "message", None)  # with the server's whole stack
    return isinstance(message, bytes) and words.encode() in message


# --- options: reads from the settings how to reach HBase's Thrift server ---------------------------------

HOST = "SITE_HBASE_HOST"
PORT = "SITE_HBASE_PORT"
TABLE = "SITE_HBASE_TABLE"
ITEMS_TABLE = "SITE_HBASE_ITEMS_TABLE"
OPTIONS = "SITE_HBASE_OPTIONS"
BASE64 = "body_base64"
ROW_KEYS = ("url_id", "salted", "reversed_host")
LONGEST_TIMEOUT_SECONDS = 25.0  # see WRITE_SECONDS of adapters/files.py

_TABLE_NAME = re.compile(r"(?!hbase:)(?:\w+:)?\w[\w.-]*", re.ASCII)
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
        checked = cls(
            host=text(settings, HOST, required=True),
            port=integer(settings, PORT, 1, 65_535),
            table=_table_name(settings),
            row_key=choice(settings, "SITE_HBASE_ROW_KEY", ROW_KEYS),
            cell_bytes=integer(settings, "SITE_HBASE_CELL_BYTES", 1000),
            timeout_seconds=seconds(settings, "SITE_HBASE_TIMEOUT_SECONDS", 1, LONGEST_TIMEOUT_SECONDS),
            options=_client_options(settings),
        )
        if checked.host.count(":") == 1 or "[" in checked.host:
            raise ConfigError(f"{HOST} is {checked.host!r}, but takes a host or an address alone: {PORT} is the port.")
        checked._client(1.0)  # shows at once whether the options are right
        names = result_fields(settings)
        if names and checked.row_key == "reversed_host" and all(names.get(name) != name for name in ("url", "host")):
            raise ConfigError("SITE_HBASE_ROW_KEY=reversed_host needs url or host, not renamed, in SITE_RESULT_FIELDS.")
        for name, target in names.items():
            if (name == BASE64) is not (target == BASE64) or target == "body_bytes":
                said = f"maps {name} to {target}, but HBase keeps {BASE64}, under no other name, as body_bytes"
                raise ConfigError(f"SITE_RESULT_FIELDS {said}: leave it out.")
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

    @contextmanager
    def asking(self, timeout_seconds: float, *, ends_without_table: bool = False) -> Iterator[HBaseConnection]:
        """A connection for some calls; a table that is missing may only end them. Raises SinkUnavailable."""
        with closing(self.connect(timeout_seconds)) as connection:
            try:
                yield connection
            except CLIENT_ERRORS as error:
                if not (ends_without_table and _says(error, "TableNotFoundException")):
                    raise self.unavailable(explained(error)) from error

    def unavailable(self, reason: str) -> SinkUnavailable:
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
            "or namespace:name, neither begins with - or a dot, and the namespace hbase is HBase's own."
        )
    return name


def _client_options(settings: SettingsView) -> dict[str, Any]:
    options = mapping(settings, OPTIONS)
    if unknown := sorted(options.keys() - _ALLOWED_OPTIONS):
        allowed = " and ".join(sorted(_ALLOWED_OPTIONS))
        raise ConfigError(f"{OPTIONS} names {unknown[0]!r}, but may set {allowed} only.")
    return options
