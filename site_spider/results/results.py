"""Submits results to the sinks and releases their holds when all have acknowledged."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from sys import getsizeof
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

from site_spider import runtime
from site_spider.contracts.sink import Answer, Record, Sink, Verdict
from site_spider.errors import SinkRejected, SinkUnavailable
from site_spider.ledger.completion import Completion, Job, SeedListener
from site_spider.ledger.ledger import Outcome
from site_spider.page.url import host_of, site_of
from site_spider.results.commits import Commits
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.delivery import Delivery
from site_spider.results.document import OF_MERGED, Fields, Result, is_marked, refusal_of, written
from site_spider.results.failures import failure_name
from site_spider.seed.seed import object_bytes

logger = logging.getLogger(__name__)

_LONG = 50_000  # characters of a body that is weighed
_OBJECTS = (dict, list)
_SAMPLE = 5_000  # characters of it that are looked at


class DocumentForm(NamedTuple):
    """How documents are made; `describe` fills in what a response says."""

    fields: Fields = MappingProxyType({})
    spider: str | None = None
    describe: Callable[[Result, Any], None] | None = None
    nulls: Mapping[str, None] = MappingProxyType({})  # fields that every result has, if only as null
    deletes_gone: bool = False  # documents with gone_at


_PLAIN = DocumentForm()


class ResultTally(Protocol):
    """Counts what is written."""

    def page(self, document: Mapping[str, Any], job: Job | None, *, is_again: bool) -> None:
        """A result is on its way to the sinks, with all fields under their own names.

        `is_again`: it replaces one of the same page, which did not say that it failed.
        """

    def item(self) -> None:
        """An item is on its way to the sinks."""


class Results(SeedListener):
    """Hands results to all deliveries; what a server refuses becomes the seed's dead letter."""

    def __init__(
        self,
        deliveries: Sequence[Delivery],
        item_deliveries: Sequence[Delivery],
        commits: Commits,
        completion: Completion,
        dead_letters: DeadLetters,
        tally: ResultTally,
        is_urgent: Callable[[], bool],
        form: DocumentForm = _PLAIN,
    ) -> None:
        self._form = form
        self._deliveries = {"result": deliveries, "item": item_deliveries}
        self._commits = commits
        self._tally = tally
        self._completion = completion
        self._dead_letters = dead_letters
        self._is_urgent = is_urgent

    def submit(self, document: Mapping[str, Any], job: Job | None, *, is_again: bool = False) -> None:
        """Send one document, which has a `url_id`, to every sink."""
        url_id = str(document["url_id"])
        description = document.get("description")
        if description is not None and not document.get("reason"):
            document = {**document, "reason": failure_name(str(description))}
        # nothing was fetched, or somebody made it who does not say
        if not (document.get("fetched_at") or document.get("unchanged")):
            now = runtime.now(UTC).isoformat(timespec="milliseconds")
            document = {**document, "fetched_at": now, "spider": document.get("spider") or self._form.spider}
        if self._form.nulls and is_marked(document):
            document = {**self._form.nulls, **document}
        self._tally.page(document, job, is_again=is_again)
        if job is not None:
            self._completion.written(job, document)
        is_gone = self._form.deletes_gone and document.get("gone_at") is not None
        if job is not None and url_id != job.url_id and document.get("additional_urls"):
            document = {name: document[name] for name in OF_MERGED}  # the rest of the stored one stays
        document = written(document, self._form.fields)
        record = Record(url_id, document, _size_bytes(document), is_gone=is_gone)
        if job is not None and job.exchanges and url_id == job.url_id:
            held = sum(one.size_bytes for one in job.exchanges)
            record = replace(record, size_bytes=record.size_bytes + held, exchanges=job.exchanges)
        if job is not None:
            job.written = job.written or url_id == job.url_id
        self._send(_Pending(self, job, record, failed=description is not None))

    def submit_item(self, record: Record, job: Job | None) -> None:
        """Send an item to every sink that takes items. Raises SinkRejected when there is none."""
        if not (self._deliveries["item"] or self._commits.stores_records):
            raise SinkRejected("no sink of SITE_SINKS takes items; add one that does, such as local")
        self._tally.item()
        self._send(_Pending(self, job, record, failed=False))

    def refuse(self, job: Job, reason: str) -> None:
        """Something of this job's page cannot be stored: its seed becomes a dead letter."""
        self._dead_letters.give_up(job, reason)

    def _send(self, pending: _Pending) -> None:
        deliveries = self._deliveries[pending.record.kind]
        pending.sinks = len(deliveries)
        at_once = self._is_urgent()
        if pending.job is not None:
            self._completion.ledger.hold(pending.job.entry)
        for delivery in deliveries:
            self._hand_over(delivery, pending, at_once)
        if not deliveries:
            self.settled(pending.job, pending.record, failed=pending.failed, refusal="")

    def _hand_over(self, delivery: Delivery, pending: _Pending, at_once: bool) -> None:
        """The other sinks get the result all the same when one cannot be given it."""
        try:
            delivery.submit(pending.record, pending.answered, at_once=at_once, is_void=pending.is_void)
        except SinkUnavailable as error:  # the crawl has ended: the hold stays, so the seed is repeated
            logger.debug("A result comes after the end of the crawl: %s", error)
        except Exception as error:
            logger.exception("A document could not be handed to sink %s", delivery.sink.name)
            reason = f"sink {delivery.sink.name} could not be given the {pending.record.kind}: {error!r}"
            pending.answered(Verdict(Answer.REJECTED, reason))

    def write_missing(self, job: Job) -> None:
        """A job has ended without a result: say so in a failure result."""
        known = _document_in(job.page) if job.has_page else self._known(job).document()
        why, described = job.error or "ended without a result", known.get("description")
        said = {**known, "description": f"{why} ({described})" if described else why}
        self.submit(said, job, is_again=job.written)

    def _known(self, job: Job) -> Result:
        if isinstance(job.answer, Result):
            return job.answer
        result = Result(job.url_id)
        describe_job(result, job)
        if job.answer is not None and self._form.describe is not None:
            self._form.describe(result, job.answer)
        return result

    def unwritten(self, job: Job) -> None:
        """As in SeedListener: no document is missing."""
        try:
            self._write_page(job)
        except Exception as error:
            logger.exception("No failure result could be written for %s", job.url)
            self._dead_letters.give_up(job, f"no result could be written for {job.url}: {error!r}")

    def _write_page(self, job: Job) -> None:
        """What the callback did not give itself."""
        if job.page is None or job.error is not None:
            self.write_missing(job)
        elif job.page is not Job.NO_DOCUMENT:
            self.submit(_document_in(job.page), job)
        elif job.parent is None:
            self._completion.ledger.decide(job.entry, Outcome.RESULT)

    def withdraw(self, job: Job, record: Record) -> None:
        """A sink does not get it."""
        self._completion.withdrawn(job, record.key if record.kind == "result" else None)

    def settled(self, job: Job | None, record: Record, *, failed: bool, refusal: str) -> None:
        """Every sink has answered for one document."""
        self._commits.keep(job, record)
        if job is None:
            return
        entry = job.entry
        if refusal:
            self._dead_letters.give_up(job, refusal_of(record, refusal))
        elif job.parent is None and record.key == job.url_id and record.kind == "result":
            self._completion.ledger.decide(entry, Outcome.FAILURE if failed else Outcome.RESULT)
        self._completion.release(entry)


class _Pending:
    """One document that sinks have not all answered for."""

    __slots__ = ("failed", "job", "record", "refusal", "results", "sinks")

    def __init__(self, results: Results, job: Job | None, record: Record, *, failed: bool) -> None:
        self.results = results
        self.job = job
        self.record = record
        self.failed = failed
        self.sinks = 0
        self.refusal = ""

    def is_void(self) -> bool:
        """Whether its seed is another process's by now, which may have written a newer document."""
        if self.job is None or self.job.entry.live or self.job.entry.then is not None:
            return False
        self.results.withdraw(self.job, self.record)  # at once: no repeat that comes now may wait for it
        return True

    def answered(self, verdict: Verdict) -> None:
        self.sinks -= 1
        if verdict.answer is Answer.REJECTED:
            self.refusal = self.refusal or verdict.reason or "refused by the sink"
        if self.sinks == 0:
            self.results.settled(self.job, self.record, failed=self.failed, refusal=self.refusal)


def _document_in(page: Any) -> Mapping[str, Any]:
    """Of a page that was prepared, or given by the callback."""
    return page.document() if isinstance(page, Result) else page


def describe_job(result: Result, job: Job) -> None:
    """Fill in what is known of a result before anything was downloaded."""
    result.url = job.url
    describe_host(result, host_of(job.url))
    result.depth = job.depth
    result.method = job.method
    seed = job.seed
    result.task_id, result.meta = seed.task_id, seed.extra
    if job.parent is None:
        result.parent_url_id = seed.parent_url_id
        result.seed_url_id = seed.seed_url_id
    else:
        result.parent_url_id = job.parent.url_id
        result.seed_url_id = seed.seed_url_id or seed.url_id


def describe_host(result: Result, host: str) -> None:
    """Fill in what the host tells."""
    result.host = host
    result.registered_domain = site_of(host) or None


def _size_bytes(document: Mapping[str, Any]) -> int:
    """About the document's weight: texts and objects counted, the rest estimated."""
    size = 600
    for value in document.values():
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, _OBJECTS):
            size += object_bytes(value)
    body = document.get("body")
    return size + _long_body_bytes(body) if isinstance(body, str) and len(body) > _LONG else size


def _long_body_bytes(body: str) -> int:
    """Beyond its length: one, two or four bytes a character, and six for one that JSON escapes."""
    middle = len(body) // 2
    sample = body[middle : middle + _SAMPLE]
    escaped = len(json.dumps(sample, ensure_ascii=False)) - len(sample)
    return getsizeof(body) - len(body) + escaped * len(body) // _SAMPLE


# --- sinks: all sinks of a crawl, one delivery each ------------------------------------------------------


class Sinks:
    """On the event loop's thread only, but for `are_taking`."""

    def __init__(self, deliveries: Sequence[Delivery], backlog_bytes: int) -> None:
        self._deliveries = deliveries
        self.backlog_limit_bytes = backlog_bytes  # of each
        self._are_closed = False

    def __iter__(self) -> Iterator[Delivery]:
        """Those in use: of a crawl without items, only those of results."""
        yield from [delivery for delivery in self._deliveries if getattr(delivery.sink, "is_used", True)]

    async def open(self, wait_seconds: float) -> None:
        """Open one after the other, waiting for those that are away. Raises SinkUnavailable, ConfigError."""
        for delivery in self._deliveries:
            await delivery.open(wait_seconds)

    def are_taking(self) -> bool:
        """False while one is away, or too much waits for it. Any thread may ask."""
        for delivery in self._deliveries:  # noqa: SIM110 - without a generator for each request
            if not delivery.takes(self.backlog_limit_bytes):
                return False
        return True

    def flush(self) -> None:
        """Send the results that wait for their batch to fill."""
        for delivery in self._deliveries:
            delivery.flush()

    @property
    def have_room(self) -> bool:
        """Whether not too much waits for any of them, or they are closed and take nothing any more."""
        limit = self.backlog_limit_bytes
        return self._are_closed or all(delivery.backlog_bytes < limit for delivery in self._deliveries)

    def have_taken_most(self) -> bool:
        """Whether few results wait, so that a large one may be made."""
        return sum(delivery.backlog_bytes for delivery in self._deliveries) < self.backlog_limit_bytes // 4

    @property
    def are_writing(self) -> bool:
        """Whether results wait for a sink that is there."""
        return any(delivery.available and delivery.backlog_count for delivery in self._deliveries)

    async def close(self, timeout_seconds: float) -> None:
        """Let each take what waits; what it does not take in time is repeated."""
        closing = (delivery.close(timeout_seconds) for delivery in self._deliveries)
        left = sum(await asyncio.gather(*closing))
        self._are_closed = True
        if left:
            logger.warning("%d results were not taken by their sinks; their seeds are repeated", left)


# --- on demand -------------------------------------------------------------------------------------------
# A sink that is opened by its first batch: a crawl without items needs no index, table or topic for them.


class OnDemand:
    """Fulfils Sink with another one, whose settings have been checked."""

    def __init__(self, sink: Sink) -> None:
        self.name = f"{sink.name} (items)"
        self._sink = sink
        self.is_used = False  # whether there was a first batch
        self._is_open = False
        self._opening = asyncio.Lock()

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        """It is made of a sink, not of settings."""
        raise NotImplementedError

    async def check(self) -> str:
        """As the sink does, where it can say."""
        check = getattr(self._sink, "check", None)
        return str(await check()) if check is not None else ""

    async def open(self) -> None:
        """Nothing yet."""

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """As the sink does. Raises SinkUnavailable, and ConfigError when the sink cannot be opened."""
        self.is_used = True
        if not self._is_open:
            async with self._opening:
                await self._open_once()
        return await self._sink.write(records)

    async def close(self) -> None:
        """Close it if it is open. Never raises."""
        if self._is_open:
            self._is_open = False
            await self._sink.close()

    async def _open_once(self) -> None:
        if not self._is_open:
            await self._sink.open()
            self._is_open = True
