"""Writes records to one HBase table over one Thrift connection.

Theory of operation. An object belongs to one thread, `hang_up` excepted. After any error the
connection is thrown away, because the client would hand out the previous answer after a timeout, and
send the failed request once more after a reconnect. A call that timed out may have been carried out;
all writes are puts of whole cells, so doing them again is harmless.

A call is refused as a whole for one bad row in it. Then its halves are written by themselves
until the guilty row stands alone. Whatever does not speak of a row for certain is an outage (rule 7).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple, NoReturn

from site_spider import runtime
from site_spider.adapters.hbase.connection import (
    CLIENT_ERRORS,
    HBaseConnection,
    explained,
    is_crash,
    is_from_hbase,
    is_refusal,
    is_table_there,
    is_too_large,
)
from site_spider.adapters.hbase.nulls import columns_to_ask, settled
from site_spider.adapters.hbase.options import TABLE, HBaseOptions
from site_spider.adapters.hbase.row import FAMILY, Row, RowLayout
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkRejected

logger = logging.getLogger(__name__)

CALL_BYTES = 8_000_000  # of rows in one call: ten times as much wedges a Thrift server of 512 MB
CALL_ROWS = 1000
OPEN_TIMEOUT_SECONDS = 10.0
IDLE_SECONDS = 30.0  # the server closes a connection after 60 s without a call

# GZ is the one compression that every server has, without native libraries.
SCHEMA = {
    FAMILY: {
        "max_versions": 1,
        "compression": "GZ",
        "bloom_filter_type": "ROW",
        "block_cache_enabled": True,
    }
}


class _Refusal(Exception):
    """The server refuses a call for what is in it; `answer` is for a row that is alone in it."""

    def __init__(self, reason: str, answer: Answer, *, too_large: bool) -> None:
        super().__init__(reason)
        self.verdict = Verdict(answer, reason)
        self.too_large = too_large


class _NumberedRow(NamedTuple):
    """A row and where its record stands in the batch."""

    number: int
    row: Row


class HBaseTable:
    """The table SITE_HBASE_TABLE."""

    def __init__(self, options: HBaseOptions) -> None:
        self._options = options
        self._layout = RowLayout(options.row_key, options.cell_bytes)
        self._name = options.table.encode()
        self._connection: HBaseConnection | None = None
        self._is_checked = False  # whether the table is known to exist
        self._used_at = 0.0

    def open(self) -> None:
        """Connect, and create the table if it is missing. Raises SinkUnavailable, ConfigError."""
        self._is_checked = False
        self._guarded()

    def check(self) -> str:
        """What `open` would find. Raises SinkUnavailable."""
        options = self._options
        try:
            with closing(options.connect(OPEN_TIMEOUT_SECONDS)) as connection:
                exists = self._name in connection.tables()
        except CLIENT_ERRORS as error:
            raise options.unavailable(explained(error)) from error
        there = "is there" if exists else "will be created"
        return f"{options.host}:{options.port} answers; table {options.table} {there}"

    def write(self, records: Sequence[Record], deadline: float) -> list[Verdict]:
        """One verdict for each record; what is not begun at `deadline` (monotonic seconds) has to be
        tried again. Raises SinkUnavailable.
        """
        verdicts: list[Verdict] = [ACKNOWLEDGED] * len(records)
        rows: list[_NumberedRow] = []
        for number, record in enumerate(records):
            try:
                rows.append(_NumberedRow(number, self._layout.row(record)))
            except SinkRejected as error:
                verdicts[number] = Verdict(Answer.REJECTED, str(error))
        for call in _calls(rows):
            for number, verdict in self._put(call, deadline):
                verdicts[number] = verdict
        return verdicts

    def close(self) -> None:
        """Give the connection back. Never raises."""
        connection, self._connection = self._connection, None
        if connection is not None:
            _close(connection)

    def hang_up(self) -> None:
        """From any thread: whoever waits for the server stops waiting, with an error."""
        connection = self._connection
        if connection is not None:
            _close(connection)

    # --- The connection ---

    def _guarded(self, action: Callable[[HBaseConnection], None] | None = None) -> None:
        """Do it on a connection that is good, which is thrown away if it fails.

        Raises _Refusal, SinkUnavailable and ConfigError.
        """
        try:
            connection = self._connected()
            if action is not None:
                action(connection)
        except CLIENT_ERRORS as error:
            self.close()
            self._raise_ours(error)
        except BaseException:
            self.close()
            raise
        self._used_at = runtime.monotonic()

    def _connected(self) -> HBaseConnection:
        if self._connection is not None and runtime.monotonic() - self._used_at > IDLE_SECONDS:
            self.close()
        if self._connection is None:
            self._connection = self._options.connect(OPEN_TIMEOUT_SECONDS)
            if not self._is_checked:
                self._ensure_table(self._connection)
                self._is_checked = True
            self._connection.set_timeout(self._options.timeout_seconds)
        return self._connection

    def _raise_ours(self, error: BaseException) -> NoReturn:
        reason = explained(error)
        if is_refusal(error):
            raise _Refusal(reason, Answer.REJECTED, too_large=is_too_large(error)) from error
        if is_crash(error):
            raise _Refusal(reason, Answer.RETRY, too_large=False) from error
        if is_from_hbase(error):
            self._is_checked = False  # a missing table is reported as servers with issues
        raise self._options.unavailable(reason) from error

    def _ensure_table(self, connection: HBaseConnection) -> None:
        name = self._options.table
        if self._name not in connection.tables():
            try:
                connection.create_table(name, SCHEMA)
                logger.info("Created the HBase table %s.", name)
            except CLIENT_ERRORS as error:
                if not is_table_there(error):
                    raise
        if not connection.has_family(self._name, FAMILY):
            raise ConfigError(
                f"{TABLE} is {name!r}, a table without the column family {FAMILY!r}. Add it"
                f" (alter '{name}', '{FAMILY}' in the HBase shell) or name another table."
            )

    # --- Writing ---

    def _put(self, call: Sequence[_NumberedRow], deadline: float) -> list[tuple[int, Verdict]]:
        if runtime.monotonic() > deadline:
            late = Verdict(Answer.RETRY, "the server took too long for the calls before this one")
            return [(number, late) for number, _ in call]
        try:
            self._guarded(lambda connection: self._put_settled(connection, [row for _, row in call]))
        except _Refusal as refusal:
            if len(call) == 1:
                return self._put_shortened(call[0], refusal, deadline)
            middle = len(call) // 2
            return [*self._put(call[:middle], deadline), *self._put(call[middle:], deadline)]
        return [(number, ACKNOWLEDGED) for number, _ in call]

    def _put_settled(self, connection: HBaseConnection, rows: Sequence[Row]) -> None:
        stored: dict[bytes, Mapping[bytes, bytes]] = {}
        if columns := columns_to_ask(rows):
            stored = dict(connection.table(self._options.table).rows([row.key for row in rows], columns))
        over = [settled(row, stored.get(row.key, {})) for row in rows]
        connection.put(self._name, [(row.key, row.cells) for row in over])

    def _put_shortened(
        self, place: _NumberedRow, refusal: _Refusal, deadline: float
    ) -> list[tuple[int, Verdict]]:
        """The server's limit is lower than SITE_HBASE_CELL_BYTES: half the body is better than none."""
        if not refusal.too_large or not place.row.content_bytes:
            return [(place.number, refusal.verdict)]
        shorter = place.row.shortened(place.row.content_bytes // 2)
        return self._put([_NumberedRow(place.number, shorter)], deadline)


def _calls(rows: Sequence[_NumberedRow]) -> Iterator[list[_NumberedRow]]:
    """The rows in portions for one call each; a row that alone is larger travels alone."""
    call: list[_NumberedRow] = []
    room = CALL_BYTES
    for place in rows:
        size = place.row.size_bytes
        if call and (size > room or len(call) == CALL_ROWS):
            yield call
            call, room = [], CALL_BYTES
        call.append(place)
        room -= size
    if call:
        yield call


def _close(connection: HBaseConnection) -> None:
    # it is broken already, or another thread closes it at this moment, on which thriftpy2 trips
    with contextlib.suppress(*CLIENT_ERRORS, AttributeError):
        connection.close()
