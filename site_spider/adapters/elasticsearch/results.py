"""Reads results back from an Elasticsearch index."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Self

from elasticsearch import ApiError, NotFoundError, TransportError

from site_spider.adapters.elasticsearch.client import (
    AnswerTooLarge,
    ElasticsearchOptions,
    PageNode,
    documents,
    index_name,
    part,
    reason_of,
    within,
)
from site_spider.adapters.elasticsearch.index_template import TEXT
from site_spider.contracts.sink import ANY, Fields, StatusFilter
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.options import SettingsView
from site_spider.page.url import beginnings_of
from site_spider.results.document import without_mark

logger = logging.getLogger(__name__)

# --- query: filters of documents as a query --------------------------------------------------------------

Query = dict[str, Any]


def query(status: StatusFilter, fields: Fields, *, of_items: bool) -> Query:
    """The documents that fit all filters."""
    conditions: list[Query] = []
    if isinstance(status, int):
        conditions.append({"term": {"status": status}})
    elif status is not None:
        conditions.append({"bool": {"must_not": {"exists": {"field": "status"}}}})
    for name, value in fields.items():
        if of_items:
            conditions.append(_of_host(value) if name == "host" else _is(f"_page.{name}", value))
        else:
            conditions.append(_is(name, value))
    return {"bool": {"filter": conditions}}


def _is(name: str, value: str) -> Query:
    """The second is for an index that was there before us, with mappings that were guessed."""
    return {"bool": {"should": [{"term": {field: value}} for field in (name, f"{name}.keyword")]}}


def _of_host(host: str) -> Query:
    fields = ("_page.url", "_page.url.keyword")
    return {"bool": {"should": [{"prefix": {field: begin}} for field in fields for begin in beginnings_of(host)]}}


PAGE_DOCUMENTS = 100  # a page is held in memory whole, and a body may have megabytes
KEEP_ALIVE = "2m"  # between two pages
_OF_ONE = ("document_parsing_exception", "mapper_parsing_exception")  # a field no longer fits the mapping


class ElasticsearchResults:
    """Reads the index SITE_RESULTS_INDEX; one that does not exist yet is empty."""

    def __init__(self, settings: SettingsView, setting: str) -> None:
        self._setting, self._of_items = setting, setting == "SITE_ITEMS_INDEX"
        self._options = options = ElasticsearchOptions.from_settings(settings)
        self._index = index_name(settings, setting)
        self._client = options.client(PageNode)
        self.address = f"{options.address} index {self._index}"

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        return cls(settings, "SITE_RESULTS_INDEX")

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        return cls(settings, "SITE_ITEMS_INDEX")

    def get(self, url_id: str) -> dict[str, Any] | None:
        if not url_id:
            return None
        with self._by_id():
            try:
                answer = self._client.get(index=self._index, id=url_id)
            except NotFoundError:
                return None
            return self._document(answer.body)

    def known(self, url_ids: Sequence[str], fields: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        with self._by_id():
            found = self._found(url_ids, fields)
            return {part(hit, "_id", str): self._document(hit) for hit in found}

    def search(
        self, status: StatusFilter = None, fields: Fields = ANY, *, limit: int | None = 1000,
        before: Fields = ANY, names: Sequence[str] = (),
    ) -> Generator[dict[str, Any]]:  # fmt: skip
        wanted = query(status, fields, of_items=self._of_items)
        wanted["bool"]["filter"] += [  # also where there is none
            {"bool": {"must_not": [{"range": {name: {"gt": moment}}}]}} for name, moment in before.items()
        ]
        with self._options.explaining():
            if not self._refreshed():
                return
            point = self._client.open_point_in_time(index=self._index, keep_alive=KEEP_ALIVE)
            identifier = part(point.body, "id", str)
        size = PAGE_DOCUMENTS if limit is None else min(PAGE_DOCUMENTS, limit)
        try:
            yield from islice(self._pages(identifier, wanted, size, list(names)), limit)
        finally:
            with self._options.explaining():
                self._client.options(ignore_status=404).close_point_in_time(id=identifier)

    def count(self, status: StatusFilter = None, fields: Fields = ANY) -> int:
        wanted = query(status, fields, of_items=self._of_items)
        with self._options.explaining():
            if not self._refreshed():
                return 0
            answer = self._client.count(index=self._index, query=wanted)
            return part(answer.body, "count", int)

    def exchange(self, name: str, changes: Mapping[str, tuple[str | None, str]]) -> set[str]:
        lines: list[Any] = []
        with self._by_id():
            for hit in self._found(list(changes), [name]):
                old, new = changes.get(url_id := part(hit, "_id", str), ("", ""))
                if (within(hit, "_source") or {}).get(name) == old:  # and while it is what was found
                    place = {"if_seq_no": part(hit, "_seq_no", int), "if_primary_term": part(hit, "_primary_term", int)}
                    lines += [{"update": {"_id": url_id, **place}}, {"doc": {name: new}}]
            if not lines:
                return set()
            answer = self._client.bulk(index=self._index, operations=lines)
            items = [part(item, "update", dict) for item in part(answer.body, "items", list)]
            said = {part(item, "_id", str): part(item, "status", int) for item in items}
        for item in items:
            reason = reason_of(item["status"], item.get("error"))
            if (within(item, "error") or {}).get("type") in _OF_ONE and f"[{name}]" not in reason:  # else it is of all
                logger.warning("Document %s of %s cannot be changed: %s", item["_id"], self.address, reason)
            elif item["status"] not in (200, 404, 409):  # 404, 409: it has changed meanwhile
                raise self._options.unavailable(reason)
        return {url_id for url_id, status in said.items() if status == 200}

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _by_id(self) -> Iterator[None]:
        """As `explaining`. Raises ConfigError where the id is not enough to find a document."""
        try:
            with self._options.explaining():
                yield
        except SinkUnavailable as error:
            if "more than one index" not in str(error):
                raise
            said = "an alias of several indices, where no document is found by its id"
            raise ConfigError(f"{self._setting} is {self._index!r}, {said}; make it an alias of one index") from error

    def _found(self, url_ids: Sequence[str], names: Sequence[str]) -> list[Any]:
        """The documents that there are; one of a shard that is away is none that is missing."""
        unread = {"index_not_found_exception"}
        found = documents(self._client, self._index, unread, ids=list(url_ids), source_includes=list(names))
        return [hit for hit in found if hit.get("found")]

    def _refreshed(self) -> bool:
        """Make visible what was just written; False when there is no such index."""
        try:
            self._client.indices.refresh(index=self._index)
        except NotFoundError:
            return False
        except ApiError as error:
            if error.status_code != 403:  # without that right, what was written a second ago may be missing
                raise
        return True

    def _pages(self, point: str, wanted: Query, size: int, names: list[str]) -> Iterator[dict[str, Any]]:
        after: list[Any] | None = None
        while True:
            with self._options.explaining():
                hits = self._page(point, wanted, after, size, names)
                documents = [self._document(hit) for hit in hits or ()]
                after = part(hits[-1], "sort", list) if hits else after
            if hits is None:
                size //= 2
                continue
            if not hits:
                return
            yield from documents

    def _page(
        self, point: str, wanted: dict[str, Any], after: list[Any] | None, size: int, names: list[str]
    ) -> list[Any] | None:
        """The hits of one page; None if a smaller one has to be asked for."""
        try:
            answer = self._client.search(
                pit={"id": point, "keep_alive": KEEP_ALIVE},
                query=wanted,
                sort=[{"_shard_doc": "asc"}],
                search_after=after,
                source_includes=names or None,
                size=size,
                track_total_hits=False,
                allow_partial_search_results=False,  # else a shard that is away has no documents
            )
        except TransportError as error:
            if size > 1 and isinstance(error.__cause__, AnswerTooLarge | TimeoutError):
                return None
            raise
        return part(part(answer.body, "hits", dict), "hits", list)

    def _document(self, hit: Any) -> dict[str, Any]:
        """Raises UnexpectedResponse. Somebody else's document may have no source."""
        document = within(hit, "_source") or {}
        if self._of_items:
            return {"_id": part(hit, "_id", str), **document}
        document = without_mark(document)
        document.pop(TEXT, None)  # body says the same
        return {"url_id": part(hit, "_id", str), **document}
