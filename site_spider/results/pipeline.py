"""The way of results and items, last in line: from a spider's callback to the deliveries of all sinks."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from operator import call
from sys import getsizeof
from types import MethodType
from typing import Any, Protocol, Self

from itemadapter import ItemAdapter
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import CloseSpider, DropItem, NotConfigured
from scrapy.http import Response
from scrapy.signalmanager import SignalManager
from twisted.python.failure import Failure

from site_spider import runtime
from site_spider.contracts.sink import Answer, Exchange, Record, Verdict
from site_spider.engine import flow as engine_hooks
from site_spider.engine.callback_guard import Callback, SafeItemProcessor, guarded, guards, unguarded
from site_spider.engine.scrapy_parts import part_of, takes_seeds
from site_spider.errors import SinkRejected, SinkUnavailable
from site_spider.ledger import completion
from site_spider.ledger.completion import Completion, Job, SeedListener, job_of
from site_spider.ledger.ledger import Outcome
from site_spider.page.url import host_of, site_of
from site_spider.results.commits import Commits
from site_spider.results.dead_letters import DeadLetters
from site_spider.results.delivery import Delivery
from site_spider.results.document import (
    OF_MERGED,
    Fields,
    Result,
    is_marked,
    item_record,
    looked_through,
    of_page,
    page_of,
    page_of_job,
    refusal_of,
    unstored,
    written,
)
from site_spider.results.failures import LONGEST_SAID, failure_name, text_of
from site_spider.seed.seed import object_bytes
from site_spider.text import cut

logger = logging.getLogger(__name__)

_LONG = 50_000  # characters of a body that is weighed
_OBJECTS = (dict, list)
_SAMPLE = 5_000  # characters of it that are looked at


class ResultTally(Protocol):
    """Counts what is written."""

    def page(self, document: Mapping[str, Any], job: Job | None, *, is_again: bool) -> None:
        """A result is on its way to the sinks, with all fields under their own names.

        `is_again`: it replaces one of the same page, which did not say that it failed.
        """

    def item(self) -> None:
        """An item is on its way to the sinks."""


@dataclass(eq=False)
class Results(SeedListener):
    """Hands results to all deliveries; what a server refuses becomes the seed's dead letter."""

    _deliveries: Mapping[str, Sequence[Delivery]]  # of each kind of record
    _commits: Commits
    _completion: Completion
    _dead_letters: DeadLetters
    _tally: ResultTally
    _urgent: Sequence[Callable[[], bool]]  # reasons, of which one is enough
    _fields: Fields
    _spider: str
    _describe: Callable[[Result, Any], None] | None  # fills in what a response says
    _nulls: Mapping[str, None]  # fields that every result has, if only as null
    _deletes_gone: bool  # documents with gone_at

    def __post_init__(self) -> None:
        self._names = tuple(self._fields.values())

    def submit(self, document: Mapping[str, Any], job: Job | None, *, is_again: bool = False) -> None:
        """Send one document, which has a `url_id`, to every sink."""
        url_id, description = str(document["url_id"]), document.get("description")
        if description is not None and not document.get("reason"):
            document = {**document, "reason": failure_name(str(description))}
        # nothing was fetched, or somebody made it who does not say
        if not (document.get("fetched_at") or document.get("unchanged")):
            now = runtime.now(UTC).isoformat(timespec="milliseconds")
            document = {**document, "fetched_at": now, "spider": document.get("spider") or self._spider}
        if self._nulls and is_marked(document) and "body" in document:
            document = {**self._nulls, **document}
        self._tally.page(document, job, is_again=is_again)
        is_gone = self._deletes_gone and document.get("gone_at") is not None
        exchanges: Sequence[Exchange] = ()
        if job is not None:
            self._completion.tell("written", job, looked_through(job, document))
            if url_id == job.url_id:
                exchanges = job.exchanges
            elif document.get("additional_urls"):
                document = {name: document[name] for name in OF_MERGED}  # the rest of the stored one stays
        document = written(document, self._fields)
        size_bytes = _size_bytes(document) + sum(one.size_bytes for one in exchanges)
        record = Record(url_id, document, size_bytes, exchanges=exchanges, is_gone=is_gone, names=self._names)
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
        self._dead_letters.give_up(job.entry, reason)

    def _send(self, pending: _Pending) -> None:
        deliveries, at_once = self._deliveries[pending.record.kind], any(map(call, self._urgent))
        pending.sinks = len(deliveries)
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
        why, described = cut(job.error or "ended without a result", 2 * LONGEST_SAID), known.get("description")
        said = {**known, "description": f"{why} ({described})" if described else why}
        self.submit(said, job, is_again=job.written)

    def _known(self, job: Job) -> Result:
        if isinstance(job.answer, Result):
            return job.answer
        result = Result(job.url_id)
        describe_job(result, job)
        if job.answer is None and job.method in ("GET", "HEAD") and job.seed.directives.get("if_changed"):
            result.unchanged = None  # nobody answered this check: what may be stored stays
        elif job.answer is not None and self._describe is not None:
            self._describe(result, job.answer)
        return result

    def unwritten(self, job: Job) -> None:
        """Write what the callback did not give itself."""
        try:
            if job.page is Job.NO_DOCUMENT and job.error is None and job.answer is not None:
                self._completion.tell("written", job, unstored(job))
            if job.page is None or job.error is not None:
                self.write_missing(job)
            elif job.page is not Job.NO_DOCUMENT:
                self.submit(_document_in(job.page), job)
            elif job.parent is None:
                self._completion.ledger.decide(job.entry, Outcome.RESULT)
        except Exception as error:
            logger.exception("No failure result could be written for %s", job.url)
            self._dead_letters.give_up(job.entry, f"no result could be written for {job.url}: {error!r}")

    def withdraw(self, job: Job, record: Record) -> None:
        self._completion.withdrawn(job, record.key if record.kind == "result" else None)

    def settled(self, job: Job | None, record: Record, *, failed: bool, refusal: str) -> None:
        """Every sink has answered for one document."""
        self._commits.keep(job, record)
        if job is None:
            return
        if refusal:
            self._dead_letters.give_up(job.entry, refusal_of(record, refusal))
        elif job.parent is None and record.key == job.url_id and record.kind == "result":
            self._completion.ledger.decide(job.entry, Outcome.FAILURE if failed else Outcome.RESULT)
        self._completion.release(job.entry)


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
    page = page_of_job(job)
    result.url, result.method, result.depth = job.url, job.method, page.depth
    describe_host(result, host_of(job.url))
    result.task_id, result.meta = page.task_id, dict(page.meta)
    result.parent_url_id, result.seed_url_id = page.parent_url_id, page.seed_url_id


def describe_host(result: Result, host: str) -> None:
    """Fill in what the host tells."""
    result.host = host
    result.registered_domain = site_of(host) or None


def _size_bytes(document: Mapping[str, Any]) -> int:
    """About the document's weight: texts and objects counted, the rest estimated."""
    size = 600
    for value in document.values():
        if value is None:  # as most; the truth of others is not asked for: an array has none
            continue
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
    """On the event loop's thread only, but for who asks whether they take more: the intake does, too."""

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
        for delivery in self._deliveries:
            delivery.flush()

    @property
    def have_room(self) -> bool:
        """Whether not too much waits for any of them, or they are closed and take nothing any more."""
        for delivery in self._deliveries:
            if delivery.backlog_bytes >= self.backlog_limit_bytes:
                return self._are_closed
        return True

    def have_taken_most(self) -> bool:
        """Whether few results wait, so that a large one may be made."""
        return sum(delivery.backlog_bytes for delivery in self._deliveries) < self.backlog_limit_bytes // 4

    @property
    def are_writing(self) -> bool:
        return any(delivery.available and delivery.backlog_count for delivery in self._deliveries)

    async def close(self, timeout_seconds: float) -> None:
        """Let each take what waits; what it does not take in time is repeated."""
        closing = (delivery.close(timeout_seconds) for delivery in self._deliveries)
        left = sum(await asyncio.gather(*closing))
        self._are_closed = True
        if left:
            logger.warning("%d results were not taken by their sinks; their seeds are repeated", left)


# --- The item pipeline that hands results and items to the sinks -----------------------------------------

_LOOK_SECONDS = 0.02


class PlacedItemProcessor(SafeItemProcessor):
    """Numbers the items of each page in the order in which the spider gives them, before any pipeline."""

    def process_item_async(self, item: Any) -> Coroutine[Any, Any, Any]:
        completion.take_place(is_item=not isinstance(item, Result))
        return super().process_item_async(item)


class ResultPipeline:
    """Takes a Result as the document of its page, and anything else as an item; both go on to feeds."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @cached_property
    def _parts(self) -> tuple[Results, Sinks]:
        results, sinks = part_of(self._crawler, Results), part_of(self._crawler, Sinks)
        assert results is not None, "an item before the spider has opened"
        assert sinks is not None
        return results, sinks

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not takes_seeds(crawler):
            raise NotConfigured
        return cls(crawler)

    def process_item(self, item: Any) -> Any:
        """Queue it for every sink and return it at once; its acknowledgement goes to the ledger.

        While the sinks have too much to do, it is returned later: a page may give any number.
        """
        results, sinks = self._parts
        if (document := _result_in(item)) is None:
            self._submit_item(item, results)
        else:
            _submit_document(item, document, results)
        return item if sinks.have_room else _later(item, sinks)

    def _submit_item(self, item: Any, results: Results) -> None:
        request, job = completion.current_request(), completion.current_job()
        if not ItemAdapter.is_item(item):
            raise DropItem(f"{type(item).__qualname__} is no item: give a dict, Item, dataclass, attrs or pydantic")
        if request is None:
            raise DropItem("the item belongs to no page; give items in callbacks")
        assert self._crawler.spider is not None
        try:
            record = item_record(item, page_of(request), completion.current_place(), self._crawler.spider.name)
            results.submit_item(record, job)
        except SinkRejected as error:
            reason = of_page(request.url, f"an item cannot be stored: {error}")
            if job is None:
                raise DropItem(reason) from error
            results.refuse(job, reason)


def _submit_document(item: Any, document: dict[str, Any], results: Results) -> None:
    job = completion.current_job()
    if job is not None and document["url_id"] == job.url_id:
        job.page = item if document.get("unchanged") else document  # written again when something fails later
        if job.error and job.requests:
            return
    results.submit(document, job)


def _result_in(item: Any) -> dict[str, Any] | None:
    """The document of a page; a pipeline may have made a dict of the Result that the spider gave."""
    if isinstance(item, Result):
        return item.document()
    is_result = isinstance(item, dict) and item.get("url_id") and completion.current_job() is not None
    return item if is_result and completion.current_place() == 0 else None


async def _later(item: Any, sinks: Sinks) -> Any:
    # looked at again and again: records end in many places
    while not sinks.have_room:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_SECONDS)
    return item


# --- error signals: remembers what went wrong after a download, for the failure result ------------------


def note_errors(manager: SignalManager) -> None:
    """Listen to Scrapy's signals of errors."""
    manager.connect(_spider_error, signal=signals.spider_error)
    manager.connect(_item_error, signal=signals.item_error)
    manager.connect(_item_dropped, signal=signals.item_dropped)


def _spider_error(failure: Failure, response: object) -> None:
    _note(_raised(failure, "the spider"), response)


def _item_error(item: object, failure: Failure, response: object) -> None:
    _note(_raised(failure, "an item pipeline"), response, item)


def _item_dropped(item: object, exception: BaseException, response: object) -> None:
    if (job := completion.current_job()) is not None and _is_result(item, job):  # nobody wants what else is dropped
        _note(f"the item was dropped: {text_of(exception)}", response, item)


def _raised(failure: Failure, where: str) -> str:
    return f"{type(failure.value).__name__} in {where}: {text_of(failure.value)}"


def _note(error: str, response: object, item: object = None) -> None:
    job = completion.current_job()
    if job is None:
        return
    job.error = error
    if isinstance(item, Result) and item.url_id == job.url_id:
        job.page = item
    if job.answer is None and isinstance(response, Response):
        job.answer = response


# --- callbacks -------------------------------------------------------------------------------------------
# The callbacks of a spider as they are called: bounded in time, and followed by the result of their page.
# A callback gives items and requests; the result of its page is written besides, unless it has given that itself. It is
# prepared here, where a large body can be read in turns, noted in the job, and written when all that the callback gave
# has left the pipelines. A generator that is not asynchronous is not begun before: nothing can be awaited at its end.

_GIVES_RESULT = "gives_page_result"
Prepare = Callable[[Any], Awaitable[Any]]


def gives_page_result(callback: Callback) -> Callback:
    """Marks a method of a spider that gives the result of its page itself."""
    setattr(callback, _GIVES_RESULT, True)
    return callback


def given_by(spider: Spider, result: Result, job: Job | None, callback: Callback | None = None) -> list[Result]:
    """Where the callback of its page gives items alone, it is noted: no pipeline and no feed is to see it."""
    callback = unguarded(callback) or engine_hooks.default_callback(spider)
    if job is None or job.written or getattr(callback, _GIVES_RESULT, False):
        return [result]
    job.page, job.error = result, None
    return []


class Callbacks:
    """Of one spider. Methods of the spider are wrapped once."""

    def __init__(self, spider: Spider, timeout_seconds: float) -> None:
        self._spider = spider
        self._timeout_seconds = timeout_seconds
        default = getattr(spider, "callback_of_pages", None)  # of a spider that takes seeds
        self._default: Callback = default or engine_hooks.default_callback(spider)
        self._failed: Callback | None = getattr(spider, "failed", None)
        self._page_result: Prepare | None = getattr(spider, "page_result", None)
        self._failure_result: Prepare | None = getattr(spider, "failure_result", None)
        self._methods: dict[tuple[Callback, Prepare | None], Callback] = {}  # one may be callback and errback
        failed = None if self._failed is None else self._wrapped(self._failed, self._failure_result)
        self._usual = self._wrapped(self._default, self._page_result), failed

    def complete(self, request: Request) -> None:
        """Give a request of a seed the callback and errback that are called."""
        if request.callback is None and request.errback is None:
            request.callback, request.errback = self._usual
            return
        request.callback = self._wrapped(request.callback or self._default, self._page_result)
        errback = request.errback or self._failed
        request.errback = None if errback is None else self._wrapped(errback, self._failure_result)

    def _wrapped(self, callback: Callback, prepare: Prepare | None) -> Callback:
        if not isinstance(callback, MethodType) or callback.__self__ is not self._spider:
            return self._new(callback, prepare)
        method = callback.__func__, prepare
        if method not in self._methods:
            self._methods[method] = self._new(callback, prepare)
        return self._methods[method]

    def _new(self, callback: Callback, prepare: Prepare | None) -> Callback:
        call = guarded(callback, self._timeout_seconds)
        if call is callback or prepare is None or getattr(callback, _GIVES_RESULT, False):
            return call
        followed = _followed(call, guarded(prepare, self._timeout_seconds))
        return guards(followed, callback)


def _followed(callback: Callback, prepare: Prepare) -> Callback:
    def call(answer: Any, **keywords: Any) -> Any:
        """`answer` is a Response or a Failure, which both know their request."""
        job = job_of(answer.request)
        if job is None:
            return callback(answer, **keywords)
        job.error = job.page = job.answer = None  # of an earlier attempt
        try:
            output = callback(answer, **keywords)
        except Exception as error:  # noqa: BLE001 - raised again when the result is prepared
            output = _raising(error)
        if inspect.isasyncgen(output):
            return _after(output, answer, job, prepare)
        return _beside(output, answer, job, prepare)

    return call


async def _beside(output: Any, answer: Any, job: Job, prepare: Prepare) -> Any:
    if inspect.isawaitable(output):
        try:
            output = await output
        except Exception as error:
            await _prepare_failed(answer, job, prepare, error)
            raise
    if inspect.isasyncgen(output):
        return _after(output, answer, job, prepare)
    if isinstance(output, Iterator) or not _has_result(output, job):
        await _prepare(answer, job, prepare)
    return output


async def _after(output: Any, answer: Any, job: Job, prepare: Prepare) -> AsyncIterator[Any]:
    has_result = False
    try:
        async for one in output:
            has_result = has_result or _is_result(one, job)
            yield one
    except Exception as error:
        await _prepare_failed(answer, job, prepare, error)
        raise
    finally:
        await output.aclose()
    if not has_result:
        await _prepare(answer, job, prepare)


async def _prepare(answer: Any, job: Job, prepare: Prepare) -> None:
    job.page = await prepare(answer) or job.NO_DOCUMENT


async def _prepare_failed(answer: Any, job: Job, prepare: Prepare, error: Exception) -> None:
    """The reason is noted when nobody has an answer to the error: see note_errors, which hears of no CloseSpider."""
    job.error = type(error).__name__  # the page needs a result: see SeedSpider.page_result
    with suppress(Exception):  # what can be told without waiting is told later
        job.answer = await prepare(answer)
        job.page = job.page or job.answer  # who has an answer to the error may want it as it is
    job.error = f"CloseSpider in the spider: {error.reason}" if isinstance(error, CloseSpider) else None


async def _raising(error: Exception) -> None:
    raise error


def _has_result(output: Any, job: Job) -> bool:
    return _is_result(output, job) or (isinstance(output, list | tuple) and any(_is_result(one, job) for one in output))


def _is_result(one: Any, job: Job) -> bool:
    """Whether it is the document of the job's page, which may be merged into another one."""
    return isinstance(one, Result) and (one.url_id == job.url_id or bool(one.additional_urls))
