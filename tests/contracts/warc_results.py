"""Reads the files of the WARC sink back: what the records of a key say, laid over each other."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from warcio.archiveiterator import ArchiveIterator

from site_spider.adapters.local.results import merged
from site_spider.errors import SinkUnavailable
from site_spider.options import SettingsView, text
from tests.contracts.kafka_results import FoldedResults


class WarcRecord(NamedTuple):
    """One record of a file."""

    kind: str
    headers: dict[str, str]
    block: bytes

    @property
    def payload(self) -> bytes:
        """Of a block of HTTP."""
        return self.block.partition(b"\r\n\r\n")[2]

    @property
    def key(self) -> str:
        return unquote(self.headers["Site-Url-Id"])


def records_of(path: Path) -> list[WarcRecord]:
    """All records of a file."""
    with path.open("rb") as file:
        found = ArchiveIterator(file, no_record_parse=True)
        return [WarcRecord(one.rec_type, dict(one.rec_headers.headers), one.raw_stream.read()) for one in found]


class WarcResults(FoldedResults):
    """A reader as the contract of readers has it. It reads all files for every question."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = str(folder)

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        return cls(Path(text(settings, "SITE_WARC_DIR", required=True)))

    def close(self) -> None:
        pass

    def _all(self) -> dict[str, dict[str, Any]]:
        documents: dict[str, dict[str, Any]] = {}
        for key, document in sorted(self._written(), key=lambda written: written[1]["date"]):
            documents[key] = merged(documents.get(key, {}), document["fields"])
        return documents

    def _written(self) -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            paths = sorted(path for path in self._folder.iterdir() if ".warc.gz" in path.name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SinkUnavailable(f"SITE_WARC_DIR {self._folder}: {error}") from error
        for path in paths:
            contents: dict[str, dict[str, str]] = {}
            for record in records_of(path):
                if record.kind == "resource":
                    contents[record.headers["WARC-Record-ID"]] = _content(record)
                elif record.kind == "metadata":
                    content = contents.get(record.headers.get("WARC-Concurrent-To", ""), {})
                    fields = {**json.loads(record.block), **content}
                    yield record.key, {"date": record.headers["WARC-Date"], "fields": fields}


def _content(record: WarcRecord) -> dict[str, str]:
    if record.headers["Content-Type"].endswith("; charset=utf-8"):
        return {"body": record.block.decode()}
    return {"body_base64": base64.b64encode(record.block).decode()}
