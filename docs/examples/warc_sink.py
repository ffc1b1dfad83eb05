"""A sink of one's own: writes results to WARC files (ISO 28500), the format of web archives.

Run it with SITE_SINKS=local,docs.examples.warc_sink.WarcSink, or copy it and name your copy. It needs
the package warcio. docs/own-sinks.md explains it.

Theory of operation. A result with content becomes a `resource` record, which is what WARC calls content
without the protocol that brought it: the text was decoded, so a `response` record would claim bytes that
never were on the wire. Text stands there as UTF-8, binary content (SITE_KEEP_BINARY) byte by byte. All
else that is known, status and headers for example, stands in a `metadata` record behind it, which is all
there is of a result without content. Both carry the result's key in `Site-Url-Id`.

Nothing in a WARC file is ever changed, so a result that is delivered again is there again, and readers
take the last of a key. Every process writes files of its own. A file is named `.open` and locked while
it is written. One that nobody holds any more was left by a crash: its whole records are kept, a last one
that was half written is cut off, and it gets its final name.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import secrets
import zlib
from base64 import b64decode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar
from urllib.parse import quote

from warcio.warcwriter import WARCWriter

from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import SinkRejected, SinkUnavailable
from site_spider.options import SettingsView, integer, text
from site_spider.page.decode import media_type
from site_spider.results.document import encode

T = TypeVar("T")

MAX_BYTES = "SITE_WARC_MAX_BYTES"
DEFAULT_MAX_BYTES = 1_000_000_000  # what archives recommend
OPEN = ".open"  # behind the name of a file that is being written
READ_BYTES = 65_536  # at a time: what was compressed may be a thousand times as long
URI_SIGNS = "!#$%&'()*+,/:;=?@[]~"  # that stay as they are


class WarcSink:
    """Files of up to SITE_WARC_MAX_BYTES in the folder `warc` of SITE_DATA_DIR.

    Compressing and writing wait for a processor and a disk, so they have a thread of their own.
    """

    name = "warc"
    setting_names = (MAX_BYTES,)

    def __init__(self, folder: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._files = WarcFiles(folder, max_bytes)
        self._thread: ThreadPoolExecutor | None = None

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """The sink of results in SITE_DATA_DIR. Raises ConfigError."""
        is_set = settings.get(MAX_BYTES) is not None
        max_bytes = integer(settings, MAX_BYTES, 1) if is_set else DEFAULT_MAX_BYTES
        return cls(Path(text(settings, "SITE_DATA_DIR", required=True)) / "warc", max_bytes)

    async def open(self) -> None:
        """Make the folder, and mend what a crash left there. Raises SinkUnavailable."""
        await self._run(self._files.prepare)

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """Append the records; they are on the disk when this returns. Raises SinkUnavailable."""
        return await self._run(lambda: self._files.write(records))

    async def close(self) -> None:
        """Give the last file its final name. Never raises."""
        thread, self._thread = self._thread, None
        if thread is not None:
            closing = asyncio.get_running_loop().run_in_executor(thread, self._files.close)
            thread.shutdown(wait=False)
            await closing

    async def _run(self, action: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="warc-sink")
        return await asyncio.get_running_loop().run_in_executor(self._thread, action)


class WarcFiles:
    """One file after the other, of up to `max_bytes` unless a single result is longer. Blocks."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._token = secrets.token_hex(4)
        self._count = 0
        self._file: BinaryIO | None = None
        self._path = folder  # of the file, when there is one

    def prepare(self) -> None:
        """Make the folder and mend what a crash left. Raises SinkUnavailable."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._mend()
        except OSError as error:
            raise self._unavailable(error) from error

    def write(self, records: Sequence[Record]) -> list[Verdict]:
        """Append the records and wait for the disk; one verdict for each. Raises SinkUnavailable."""
        try:
            verdicts = [self._put(record) for record in records]
            self._sync()
        except OSError as error:
            self._abandon()
            raise self._unavailable(error) from error
        return verdicts

    def close(self) -> None:
        """Finish the file. Never raises; if it cannot be finished, the next start does so."""
        try:
            self._finish()
        except OSError:
            self._abandon()

    def _put(self, record: Record) -> Verdict:
        try:
            written = warc_records(record)
        except SinkRejected as error:
            return Verdict(Answer.REJECTED, str(error))
        self._room_for(len(written)).write(written)
        return ACKNOWLEDGED

    # --- Files ---

    def _room_for(self, size_bytes: int) -> BinaryIO:
        file = self._file
        if file is not None and file.tell() + size_bytes > self._max_bytes:
            self._finish()
        return self._file or self._begin()

    def _begin(self) -> BinaryIO:
        self.prepare()
        self._count += 1
        now = f"{datetime.now(UTC):%Y%m%d%H%M%S%f}"
        name = f"site_spider-{now}-{self._count:05}-{self._token}.warc.gz"
        self._path = self._folder / (name + OPEN)
        self._file = self._path.open("xb")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.write(warcinfo(name))
        _sync_folder(self._folder)
        return self._file

    def _sync(self) -> None:
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            if os.fstat(self._file.fileno()).st_nlink == 0:  # what went into it is lost, without an error
                raise FileNotFoundError(f"{self._path.name} was removed while it was written")

    def _finish(self) -> None:
        self._sync()
        file, self._file = self._file, None
        if file is not None:
            with file:
                self._path.rename(self._path.with_suffix(""))
                _sync_folder(self._folder)

    def _abandon(self) -> None:
        # Nothing is known of the file any more. It is mended when the next one is begun.
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _mend(self) -> None:
        for path in sorted(self._folder.glob(f"*.warc.gz{OPEN}")):
            with suppress(FileNotFoundError, BlockingIOError):  # it was mended, or is held, by its owner
                _mend_file(path)
        _sync_folder(self._folder)

    def _unavailable(self, error: OSError) -> SinkUnavailable:
        return SinkUnavailable(
            f"SITE_DATA_DIR is {str(self._folder.parent)!r}, but {self._folder} cannot be written: {error}."
            " Check its disk and permissions, or set another folder."
        )


def _mend_file(path: Path) -> None:
    """Cut off what is half written and give the file its final name. Raises OSError."""
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        whole = whole_records_bytes(file)
        file.truncate(whole)
        os.fsync(file.fileno())
        if whole:
            path.rename(path.with_suffix(""))
        else:
            path.unlink()


def whole_records_bytes(file: BinaryIO) -> int:
    """How many bytes from the beginning are whole records, each of which is a gzip member of its own."""
    whole = position = 0
    member = zlib.decompressobj(wbits=31)
    while chunk := file.read(READ_BYTES):
        while chunk:
            try:
                member.decompress(chunk)
            except zlib.error:
                return whole
            position += len(chunk) - len(member.unused_data)
            chunk = member.unused_data
            if member.eof:
                whole = position
                member = zlib.decompressobj(wbits=31)
    return whole


def _sync_folder(folder: Path) -> None:
    """Wait until the names in it are on the disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- Records ---


def warcinfo(name: str) -> bytes:
    """The record at the beginning of a file that says what it is."""
    buffer, writer = _writer()
    writer.write_record(writer.create_warcinfo_record(name, {"software": "site_spider"}))
    return buffer.getvalue()


def warc_records(record: Record) -> bytes:
    """The records of one result, compressed. Raises SinkRejected."""
    document = {"url_id": record.key, **record.document}
    buffer, writer = _writer()
    about = {"Site-Url-Id": quote(record.key, safe="", errors="replace"), "WARC-Date": _date(document)}
    content = _content(document)
    if content is not None:
        truncated = {"WARC-Truncated": "length"} if document.get("body_truncated") else {}
        described = {**about, **truncated}
        resource = _record(writer, "resource", document, described, *content)
        writer.write_record(resource)
        about["WARC-Concurrent-To"] = resource.rec_headers.get_header("WARC-Record-ID")
    rest = encode(document)
    writer.write_record(_record(writer, "metadata", document, about, "application/json", rest))
    return buffer.getvalue()


def _content(document: dict[str, Any]) -> tuple[str, bytes] | None:
    """Media type and bytes of the content, which is taken out of the document. Raises SinkRejected."""
    given = media_type(str(document.get("content_type") or ""))
    if isinstance(document.get("body"), str) and document["body"]:
        content = document.pop("body").encode("utf-8", "replace")
        return f"{given or 'text/plain'}; charset=utf-8", content
    if document.get("body_base64") is None:
        return None
    try:
        return given or "application/octet-stream", b64decode(document.pop("body_base64"), validate=True)
    except (TypeError, ValueError) as error:
        raise SinkRejected(f"body_base64 is not base64: {error}") from None


def _record(
    writer: Any, kind: str, document: dict[str, Any], headers: dict[str, str], content_type: str, block: bytes
) -> Any:
    url = document.get("final_url") or document.get("url") or f"urn:x-url-id:{document['url_id']}"
    return writer.create_warc_record(
        quote(str(url), safe=URI_SIGNS, errors="replace"),
        kind,
        payload=io.BytesIO(block),
        length=len(block),
        warc_content_type=content_type,
        warc_headers_dict=headers,
    )


def _date(document: dict[str, Any]) -> str:
    """When the result was fetched, else the time of writing, as WARC writes dates."""
    try:
        moment = datetime.fromisoformat(document["fetched_at"]).astimezone(UTC)
    except (KeyError, TypeError, ValueError, OverflowError):
        moment = datetime.now(UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"


def _writer() -> tuple[io.BytesIO, Any]:
    buffer = io.BytesIO()
    return buffer, WARCWriter(buffer, gzip=True, warc_version="1.1")
