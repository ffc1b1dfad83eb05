"""Writes documents to an Elasticsearch index, by bulk partial updates with upsert.

When the server refuses a whole request, because of one line in it or for its size, the halves
are written by themselves until the guilty record stands alone. One that is refused alone for its size is
written once more after something smaller has passed, see adapters.elasticsearch.sizes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Self

from elasticsearch import (
    ApiError,
    AsyncElasticsearch,
    TransportError,
)

from site_spider import runtime
from site_spider.adapters.elasticsearch.answer import (
    Action,
    UnexpectedResponse,
    explained,
    refuses_content,
    verdicts_of,
)
from site_spider.adapters.elasticsearch.mapping import LATER, not_mapped
from site_spider.adapters.elasticsearch.node import PiecewiseNode
from site_spider.adapters.elasticsearch.options import ElasticsearchOptions, index_name, items_index
from site_spider.adapters.elasticsearch.page_text import page_text
from site_spider.adapters.elasticsearch.preparation import IndexPreparation
from site_spider.adapters.elasticsearch.sizes import Sizes
from site_spider.adapters.elasticsearch.stored import id_of, over_stored
from site_spider.adapters.elasticsearch.template import TEXT, IndexTemplate
from site_spider.adapters.elasticsearch.updates import PROBE, TooLarge, Update, update_of
from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.errors import SinkRejected, SinkUnavailable
from site_spider.options import SettingsView
from site_spider.resources import resource

logger = logging.getLogger(__name__)

TEMPLATES = resource("elasticsearch")
SHARD_WAIT = "20s"  # of the server, for a shard to write to; shorter than the request timeout
OPEN_TIMEOUT_SECONDS = 10.0
TOO_LARGE = 413
ENCODE_PER_TURN_BYTES = 1_000_000  # then the event loop gets its turn: about 5 ms


class ElasticsearchSink:
    """One index; its template is installed at open, so that the first write creates it well."""

    name = "elasticsearch"

    def __init__(
        self,
        options: ElasticsearchOptions,
        index: str,
        template: Path,
        action: Action = "update",
        *,
        is_shared: bool = True,
    ) -> None:
        self._is_shared = is_shared  # producers have fields of their own in its documents
        self._options = options
        self._action = action
        self._index = index
        self._preparation = IndexPreparation(options, index, IndexTemplate(template, index))
        self._writes_text = False  # of a page: the server cannot make it of the mark-up
        self._left_out: frozenset[str] = frozenset()  # fields that the mapping does not take
        self._sizes = Sizes()
        self._client: AsyncElasticsearch | None = None
        self._new_client()  # shows at once whether the options are right

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """The sink of results, SITE_RESULTS_INDEX. Raises ConfigError."""
        index = index_name(settings, "SITE_RESULTS_INDEX")
        return cls(ElasticsearchOptions.from_settings(settings), index, TEMPLATES / "results-template.json")

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        """The sink of items, SITE_ITEMS_INDEX. Raises ConfigError."""
        index = items_index(settings)
        options = ElasticsearchOptions.from_settings(settings)
        return cls(options, index, TEMPLATES / "items-template.json", "index", is_shared=False)

    @classmethod
    def for_statistics(cls, settings: SettingsView) -> Self:
        """The sink of statistics, SITE_STATS_INDEX. Raises ConfigError."""
        index = index_name(settings, "SITE_STATS_INDEX")
        options = ElasticsearchOptions.from_settings(settings)
        return cls(options, index, TEMPLATES / "stats-template.json", is_shared=False)

    async def open(self) -> None:
        """Wait until the server is ready and install the template. Raises SinkUnavailable, ConfigError."""
        await self.close()
        self._client = self._new_client()
        try:
            client = self._client.options(request_timeout=OPEN_TIMEOUT_SECONDS)
            self._writes_text = await self._preparation.run(client)
        except BaseException:
            await self.close()
            raise

    async def check(self) -> str:
        """What `open` would find. Raises SinkUnavailable, ConfigError."""
        client = self._new_client()
        try:
            return await self._preparation.check(client.options(request_timeout=OPEN_TIMEOUT_SECONDS))
        finally:
            await client.close()

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """Write the records in as few requests as the server takes. Raises SinkUnavailable."""
        verdicts = await self._write(records)
        for _ in LATER:  # a refusal names one field
            again = [number for number, one in enumerate(verdicts) if not_mapped(one.reason)]
            if not again:
                break
            self._leave_out({not_mapped(verdicts[number].reason) for number in again})
            for number, verdict in zip(again, await self._write([records[n] for n in again]), strict=True):
                verdicts[number] = verdict
        return verdicts

    async def close(self) -> None:
        """Close the connections. Never raises."""
        client, self._client = self._client, None
        if client is not None:
            try:
                await client.close()
            except Exception:  # nobody could do anything about it
                logger.exception("The connections to %s could not be closed.", self._options.address)

    # --- Opening ---

    def _new_client(self) -> AsyncElasticsearch:
        return self._options.client(AsyncElasticsearch, node_class=PiecewiseNode)

    # --- Writing ---

    async def _write(self, records: Sequence[Record]) -> list[Verdict]:
        encoded = await self._encoded(await self._over_stored(records))
        answers = await self._bulk([one for one in encoded if isinstance(one, Update)])
        verdicts = iter([await self._judged(one) if isinstance(one, TooLarge) else one for one in answers])
        return [next(verdicts) if isinstance(one, Update) else one for one in encoded]

    def _leave_out(self, fields: Set[str | None]) -> None:
        """What a mapping refuses that was made for an earlier version; the rest of the result is stored."""
        new = {field for field in fields if field} - self._left_out  # another batch may have met it, too
        if not new:
            return
        self._left_out |= new
        logger.warning(
            "Index %s has a strict mapping without %s: results are written without. Add the field to the"
            " mapping, or leave it out with SITE_RESULT_FIELDS.",
            self._index,
            ", ".join(sorted(new)),
        )

    async def _over_stored(self, records: Sequence[Record]) -> Sequence[Record]:
        if not self._is_shared or self._client is None:
            return records
        try:
            return await over_stored(self._client, self._index, records)
        except (ApiError, TransportError, RecursionError, UnexpectedResponse) as error:
            raise self._options.unavailable(explained(error)) from error

    async def _encoded(self, records: Sequence[Record]) -> list[Update | Verdict]:
        encoded: list[Update | Verdict] = []
        since_turn = 0
        for record in records:
            try:
                update = update_of(id_of(record), self._as_stored(record.document), self._action)
            except SinkRejected as error:
                encoded.append(Verdict(Answer.REJECTED, str(error)))
                continue
            encoded.append(update)
            since_turn += len(update.lines)
            if since_turn >= ENCODE_PER_TURN_BYTES or self._writes_text:
                since_turn = 0
                await asyncio.sleep(0)
        return encoded

    def _as_stored(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._writes_text:
            body = document.get("body")
            document = {**document, TEXT: page_text(body) if isinstance(body, str) else None}
        if self._left_out:
            document = {name: value for name, value in document.items() if name not in self._left_out}
        return document

    async def _bulk(self, updates: Sequence[Update]) -> list[Verdict | TooLarge]:
        if not updates:
            return []
        try:
            return [*await self._request(updates)]
        except ApiError as error:
            if not refuses_content(error):
                raise self._options.unavailable(explained(error)) from error
            if len(updates) == 1 and error.status_code == TOO_LARGE:
                return [TooLarge(updates[0], runtime.monotonic())]
            if len(updates) == 1:
                return [Verdict(Answer.REJECTED, explained(error))]
        except (TransportError, RecursionError, UnexpectedResponse) as error:
            raise self._options.unavailable(explained(error)) from error
        middle = len(updates) // 2
        return [*await self._bulk(updates[:middle]), *await self._bulk(updates[middle:])]

    async def _judged(self, refused: TooLarge) -> Verdict:
        """What becomes of a record that was refused alone for its size."""
        size_bytes = len(refused.update.lines)
        try:
            if self._sizes.is_largest(size_bytes, refused.at):
                if not self._sizes.has_passed_since(refused.at):
                    await self._request([PROBE], "update")
                return (await self._request([refused.update]))[0]
        except ApiError as error:
            if error.status_code == TOO_LARGE and self._sizes.has_passed_since(refused.at):
                return Verdict(Answer.REJECTED, explained(error))
        except (TransportError, RecursionError, UnexpectedResponse) as error:
            raise self._options.unavailable(explained(error)) from error
        return Verdict(Answer.RETRY, f"HTTP {TOO_LARGE} to a request of {size_bytes} bytes")

    async def _request(self, updates: Sequence[Update], action: Action | None = None) -> list[Verdict]:
        if self._client is None:
            raise SinkUnavailable("The Elasticsearch sink is not open.")
        lines: list[Any] = [update.lines for update in updates]  # which the client does not declare
        answer = await self._client.bulk(
            index=self._index,
            operations=lines,
            timeout=SHARD_WAIT,
            filter_path="errors,items.*._id,items.*.status,items.*.error",
        )
        verdicts = verdicts_of(answer.body, [update.key for update in updates], action or self._action)
        self._sizes.passed(sum(len(update.lines) for update in updates), runtime.monotonic())
        return verdicts
