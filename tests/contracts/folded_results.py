"""Reads results back from what only appends, for the tests: every write is kept, so they are folded by key."""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import unquote

from warcio.archiveiterator import ArchiveIterator

from site_spider.adapters.kafka.seed_log import KafkaSeedLog
from site_spider.adapters.local.results import merged
from site_spider.contracts.sink import ANY, Fields, StatusFilter
from site_spider.errors import LogUnavailable, SinkUnavailable, TopicMissing
from site_spider.options import SettingsView, text


class FoldedResults(ABC):
    """A reader of what was only ever appended: it looks through all documents for every question."""

    @abstractmethod
    def _all(self) -> dict[str, dict[str, Any]]:
        """All of them, by their keys."""

    def get(self, url_id: str) -> dict[str, Any] | None:
        return self._all().get(url_id)

    def search(
        self, status: StatusFilter = None, fields: Fields = ANY, *, limit: int | None = 1000
    ) -> Iterator[dict[str, Any]]:
        wanted = None if status is None or isinstance(status, str) else status
        fitting = (
            document
            for document in self._all().values()
            if (status is None or document.get("status") == wanted)
            and all(document.get(name) == value for name, value in fields.items())
        )
        yield from islice(fitting, limit)

    def count(self, status: StatusFilter = None, fields: Fields = ANY) -> int:
        return sum(1 for _ in self.search(status, fields, limit=None))

    def known(self, url_ids: Sequence[str], fields: Sequence[str]) -> dict[str, dict[str, Any]]:
        found = {url_id: document for url_id, document in self._all().items() if url_id in url_ids}
        return {url_id: {name: found[url_id].get(name) for name in fields} for url_id in found}


class KafkaResults(FoldedResults):
    """Fulfils `site_spider.contracts.sink.ResultReader` by reading the whole topic."""

    def __init__(self, settings: dict[str, Any], topic: str = "SITE_RESULTS_TOPIC") -> None:
        self.address = settings["SITE_KAFKA_BROKERS"]
        self._topic = settings[topic]
        self._log = KafkaSeedLog.from_settings(settings)

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        return cls(settings)

    @classmethod
    def for_items(cls, settings: Any) -> Self:
        return cls(settings, "SITE_ITEMS_TOPIC")

    def close(self) -> None:
        self._log.close()

    def messages(self) -> list[tuple[str, dict[str, Any]]]:
        """Key and document of every message, repeated ones included. Raises SinkUnavailable."""
        try:
            self._log.check(2 if self.address.endswith(":9") else 300)  # the discard port: nobody listens
            found = list(self._log.read(self._topic))
        except TopicMissing:
            return []
        except LogUnavailable as error:
            raise SinkUnavailable(str(error)) from error
        return [((raw.key or b"").decode(), json.loads(raw.value or b"")) for raw in found]

    def _all(self) -> dict[str, dict[str, Any]]:
        documents: dict[str, dict[str, Any]] = {}
        for key, document in self.messages():
            documents[key] = merged(documents.get(key, {"url_id": key}), document)
        return documents


# --- files of the WARC sink: what the records of a key say, laid over each other -------------------------


class WarcRecord(NamedTuple):
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
