"""`scrapy recrawl`: produces seeds with `if_changed` for pages of the store that are due."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from site_spider import runtime
from site_spider.commands.output import complain_above_bar, number, progress_bar, show
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.contracts.seed_log import MessagePlace, Producer, SeedLog
from site_spider.contracts.sink import ResultReader
from site_spider.errors import ConfigError, LogUnavailable, SeedError, SinkRejected, SinkUnavailable, TopicMissing
from site_spider.outage import Outage
from site_spider.page.sitemap import is_listing
from site_spider.results.document import result_fields
from site_spider.results.recrawl import (
    CLAIM,
    FACTS,
    LEASE_SECONDS,
    LONGEST_SECONDS,
    Calendar,
    CheckClaim,
    CheckRules,
    Standing,
)
from site_spider.seed.seed import seed_message
from site_spider.seed.topics import CrawlTopics
from site_spider.service import config as parts
from site_spider.tasks.declaration import span_seconds
from site_spider.tasks.orders import PutBackTasks

logger = logging.getLogger(__name__)

_MOST_AT_ONCE = 200  # pages that are claimed with one question; the first is about one
_QUICK_SECONDS, _SLOW_SECONDS = 2.0, LEASE_SECONDS / 8  # of claiming: more at once next time, or fewer
_LOOK_SECONDS = 1.0  # between looks at pages that another run has claimed
_MOST_TRIES = 3  # to claim a page: what others have claimed is not tried again
_SKEW_MS = 600_000  # of the clocks of two machines
_HEADER = "recrawl"  # of a message: the batch that claimed the page, and its url_id
_PLACE = ("task_id", "depth", "parent_url_id", "seed_url_id")
_NAMES = ("url", "method", "meta", *_PLACE, *FACTS)

Document = Mapping[str, Any]


class RecrawlPlan(NamedTuple):
    """Which pages, and where their seeds go; `names` are those that fields have in the store."""

    calendar: Calendar
    names: Mapping[str, str]
    topic: str
    task_id: str | None = None
    host: str | None = None
    limit: int = sys.maxsize
    not_extract: bool = False
    is_dry: bool = False
    waits: bool = False  # for claims of other runs, until they are kept or over


@dataclass
class Recrawl:
    """One round: all that is due, once. See results/recrawl.py for how that holds.

    Raises SinkUnavailable and LogUnavailable; what has been claimed until then is left to the next round.
    """

    _plan: RecrawlPlan
    _reader: ResultReader
    _log: SeedLog
    _topics: CrawlTopics
    _complain: Callable[[str], None]
    _step: Callable[[int], object] = lambda _pages: None
    produced: int = 0
    refused: int = 0
    left_out: Counter[str] = field(default_factory=Counter)  # pages by reason
    _lost: Counter[str] = field(default_factory=Counter)  # tries to claim a page, by url_id
    _at_once: int = 1
    _producer: Producer = field(init=False)
    _tasks: PutBackTasks = field(init=False)

    def run(self) -> None:
        with closing(self._log.producer()) as producer:
            self._producer, self._tasks = producer, PutBackTasks(self._log, producer, self._topics)
            try:
                held = self._pass(self._found())
                while held and self._plan.waits and self._room:
                    runtime.sleep(_LOOK_SECONDS)
                    held = self._pass(self._known(held))
            finally:
                self._tasks.end()
        if held and self._room:
            self.left_out["claimed by another run"] = len(held)

    def _found(self) -> Iterator[Document]:
        plan, names = self._plan, self._plan.names
        before = plan.calendar.before(runtime.now(UTC)).items()
        said = {"host": plan.host, "task_id": plan.task_id}
        found = self._reader.search(
            limit=None,
            fields={names[name]: value for name, value in said.items() if value is not None},
            before={names[name]: moment for name, moment in before if name in names},
            names=[*names.values(), CLAIM],
        )
        return map(self._read, found)

    def _known(self, url_ids: Sequence[str]) -> Iterator[Document]:
        for start in range(0, len(url_ids), _MOST_AT_ONCE):
            some = url_ids[start : start + _MOST_AT_ONCE]
            found = self._reader.known(some, [*self._plan.names.values(), CLAIM])
            yield from (self._read({**document, "url_id": url_id}) for url_id, document in found.items())

    def _read(self, stored: Document) -> Document:
        found = {name: stored.get(place) for name, place in self._plan.names.items()}
        return {**dict.fromkeys(_NAMES), **found, "url_id": stored["url_id"], CLAIM: stored.get(CLAIM)}

    @property
    def _room(self) -> int:
        return self._plan.limit - self.produced

    def _pass(self, documents: Iterator[Document]) -> list[str]:
        """Produce what is due of these; returns what others have claimed."""
        held: list[str] = []
        doubtful: list[Document] = []
        while self._room and (some := list(islice(documents, _MOST_AT_ONCE))):
            self._step(len(some))
            found = [(self._plan.calendar.standing(each, runtime.now(UTC)), each) for each in some]
            held += [document["url_id"] for standing, document in found if standing is Standing.HELD]
            doubtful += filter(self._is_wanted, [one for standing, one in found if standing is Standing.IN_DOUBT])
            held += self._produce(document for standing, document in found if standing is Standing.DUE)
        missing = self._missing(doubtful) if doubtful and self._room else iter(())
        while some := list(islice(missing, _MOST_AT_ONCE)):
            held += self._produce(some)
        return held

    def _is_wanted(self, document: Document) -> bool:
        if not document["url"] or document["method"] not in (None, "GET", "HEAD"):
            self.left_out["not fetched from a URL with GET or HEAD"] += 1
        elif not CheckClaim.is_ours(document[CLAIM]):
            self.left_out[f"with a field {CLAIM} of somebody else's"] += 1
        elif self._lost[document["url_id"]] == _MOST_TRIES:  # it is the store that does not change it
            self.left_out["that cannot be claimed"] += 1
        elif not self._tasks.takes_seeds(str(document["task_id"] or "")):
            self.left_out["of a task that was cancelled or has expired"] += 1
        else:
            return True
        return False

    # --- producing ---

    def _produce(self, due: Iterable[Document]) -> list[str]:
        """Claim, send, and say so; returns those that another run was quicker to claim."""
        held: list[str] = []
        pages = islice(filter(self._is_wanted, due), self._room)
        while some := {document["url_id"]: document for document in islice(pages, self._at_once)}:
            held += self._produce_now(some)
        return held

    def _produce_now(self, wanted: Mapping[str, Document]) -> list[str]:
        if self._plan.is_dry:
            for document in wanted.values():
                show(str(document["url"]))
            self.produced += len(wanted)
            return []
        seeds = {url_id: seed for url_id, one in wanted.items() if (seed := self._seed(one)) is not None}
        tasks = {url_id: self._tasks.before(self._plan.topic, value) for url_id, (_, value) in seeds.items()}
        batch, now, began = runtime.token_hex(8), runtime.now(UTC), runtime.monotonic()
        deadline = began + LEASE_SECONDS / 2  # long before anybody thinks that it is over
        claims = {url_id: CheckClaim.new(wanted[url_id], now, batch) for url_id in seeds}
        won = self._exchange({url_id: (wanted[url_id][CLAIM], claim.text) for url_id, claim in claims.items()})
        self._learn(runtime.monotonic() - began)
        sent = {}
        for url_id in filter(won.__contains__, seeds):  # as they were found
            if runtime.monotonic() < deadline:  # else it is left as by a run that was killed
                headers = [(_HEADER, _header(batch, url_id))]
                sent[url_id] = self._producer.send(self._plan.topic, *seeds[url_id], headers)
        self._producer.flush(max(0.0, deadline - runtime.monotonic()))
        error = self._settle({url_id: (future, tasks[url_id]) for url_id, future in sent.items()}, claims)
        if error is not None:
            why = str(error) or f"{self._log.address} does not take seeds in time"
            raise LogUnavailable(f"{why}; a later run produces what is missing")
        if len(sent) < len(won):
            raise SinkUnavailable(f"{self._reader.address} took too long for claims; a later run goes on")
        lost = [url_id for url_id in seeds if url_id not in won]
        self._lost.update(lost)
        return lost

    def _learn(self, claiming_seconds: float) -> None:
        if claiming_seconds < _QUICK_SECONDS:
            self._at_once = min(2 * self._at_once, _MOST_AT_ONCE)
        elif claiming_seconds > _SLOW_SECONDS:
            self._at_once = max(self._at_once // 4, 1)

    def _settle(
        self, sent: Mapping[str, tuple[Future[MessagePlace], str | None]], claims: Mapping[str, CheckClaim]
    ) -> Exception | None:
        """Mark what the log has answered; returns why it has not answered all."""
        error: Exception | None = None
        answered = []
        for url_id, (future, task_id) in sent.items():
            try:
                self._tasks.sent(task_id, future.result(0))
                self.produced += 1
            except SinkRejected as reason:
                self._refuse(url_id, str(reason))
            except (LogUnavailable, TimeoutError) as reason:
                error = reason
                continue
            answered.append(url_id)
        self._mark({url_id: claims[url_id] for url_id in answered})
        return error

    def _mark(self, claims: Mapping[str, CheckClaim]) -> None:
        self._exchange({url_id: (claim.text, claim.as_produced.text) for url_id, claim in claims.items()})

    def _exchange(self, changes: Mapping[str, tuple[str | None, str]]) -> set[str]:
        return self._reader.exchange(CLAIM, changes) if changes else set()

    def _missing(self, doubtful: Sequence[Document]) -> Iterator[Document]:
        """Mark what a killed run has produced, and return what it has not."""
        claims = {one["url_id"]: claim for one in doubtful if (claim := CheckClaim.read(one)) is not None}
        wanted = {_header(claim.batch, url_id): url_id for url_id, claim in claims.items()}
        since_ms = int(min(claim.at for claim in claims.values()).timestamp() * 1000) - _SKEW_MS
        found = {wanted[header] for header in self._headers(since_ms) if header in wanted}
        if not self._plan.is_dry:
            self._mark({url_id: claims[url_id] for url_id in found})
        return (one for one in doubtful if one["url_id"] not in found)

    def _headers(self, since_ms: int) -> Iterator[bytes]:
        for topic in dict.fromkeys((self._plan.topic, *self._topics.tiers)):
            with suppress(TopicMissing):
                for message in self._log.read(topic, since_ms=since_ms):
                    yield from (value for name, value in message.headers if name == _HEADER)

    def _seed(self, document: Document) -> tuple[bytes, bytes] | None:
        """Key and value of its message; None for a page that has no seed."""
        meta = dict(document["meta"]) if isinstance(document["meta"], Mapping) else {}
        if not is_listing(meta.get("sitemap")):  # a file of sitemaps is one still, as deep as its entries
            meta.pop("sitemap", None)  # of what led to the page
        meta |= {name: document[name] for name in _PLACE if document[name] is not None}
        meta |= {"url_id": document["url_id"], "if_changed": True}
        said = {"url": document["url"], "method": document["method"], "dont_filter": True, "meta": meta}
        try:
            return seed_message(json.dumps(said, ensure_ascii=False), not_extract=self._plan.not_extract)
        except SeedError as error:
            self._refuse(document["url_id"], error.reason)
            return None

    def _refuse(self, url_id: str, reason: str) -> None:
        self.refused += 1
        self._complain(f"page {url_id}: {reason}")


def _header(batch: str, url_id: str) -> bytes:
    return f"{batch} {url_id}".encode("utf-8", "replace")


class Command(SiteCommand):
    """Reads the store, once or again and again, and says how many seeds were produced."""

    summary = "Produce seeds for stored pages that are to be checked again"
    description = (
        "Produces a seed with if_changed, keyed by host, for each page of the first store of SITE_SINKS that "
        "can be read (local, Elasticsearch, HBase unless SITE_HBASE_ROW_KEY=reversed_host) and is due. No "
        "page is produced twice within its interval, also by two runs at once or after a kill. The exit code "
        "is 1 if a page was refused, or the store or the seed log is away."
    )
    examples = """
        scrapy recrawl --older-than 7d
        scrapy recrawl --adaptive --every 60s              each page after an interval of its own
        scrapy recrawl --adaptive --task-id spring --dry-run
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        which = parser.add_mutually_exclusive_group()
        older = "pages that were checked longer ago, such as 7d"
        which.add_argument("--older-than", metavar="T", type=_span, help=older)
        which.add_argument("--adaptive", action="store_true", help="pages whose next_at is over (default)")
        parser.add_argument("--task-id", metavar="ID", help="only pages of this task")
        parser.add_argument("--host", metavar="H", type="host", help="only pages of this host")
        parser.add_argument("--limit", metavar="N", type=number, default=sys.maxsize, help="pages at most")
        parser.add_argument("--topic", metavar="T", type="topic", help="produce to T instead of SITE_SEED_TOPIC")
        parser.add_argument("--not-extract", action="store_true", help="do not follow links")
        parser.add_argument("--dry-run", action="store_true", help="show the URLs that are due")
        parser.add_argument("--every", metavar="T", type=_pause, help="begin again so long after each round")

    def work(self, opts: argparse.Namespace) -> None:
        topics = CrawlTopics.beside(self.options, opts.topic)
        plan = self._plan(opts, opts.topic or topics.seeds)
        with closing(parts.reader(self.options)) as reader, closing(parts.seed_log(self.options)) as log:
            if not hasattr(reader, "exchange"):
                raise ConfigError(f"{type(reader).__name__} cannot claim pages: see ResultReader.exchange.")
            if opts.every is None:
                self._round(plan, reader, log, topics)
            else:
                self._rounds(opts.every, partial(self._round, plan, reader, log, topics))

    def _rounds(self, every_seconds: int, round_: Callable[[], None]) -> None:
        away = Outage(logger, "The round is given up and repeated later", "The store and the log are back")
        while True:
            with away.tried(SinkUnavailable, LogUnavailable):
                round_()
            runtime.sleep(every_seconds)

    def _plan(self, opts: argparse.Namespace, topic: str) -> RecrawlPlan:
        fields = result_fields(self.options)
        names = {name: fields.get(name, name) for name in (*_NAMES, "host") if not fields or name in fields}
        needed = {"url", "fetched_at", "checked_at", "host", *(["task_id"] if opts.task_id is not None else [])}
        needed |= {"next_at", "interval_s"} if opts.older_than is None else set()
        for name in needed - names.keys():
            raise ConfigError(f"SITE_RESULT_FIELDS leaves out {name}, by which pages are found: add it.")
        calendar = Calendar(CheckRules.read(self.options), opts.older_than)
        filters = opts.task_id, opts.host, opts.limit, opts.not_extract, opts.dry_run
        return RecrawlPlan(calendar, names, topic, *filters, waits=opts.every is None and not opts.dry_run)

    def _round(self, plan: RecrawlPlan, reader: ResultReader, log: SeedLog, topics: CrawlTopics) -> None:
        log.check(parts.CHECK_SECONDS)
        with progress_bar("pages") as bar:
            round_ = Recrawl(plan, reader, log, topics, complain_above_bar, bar.update)
            try:
                round_.run()
            finally:
                others = [f", {reason}: {count}" for reason, count in round_.left_out.items()]
                said = f"{'due' if plan.is_dry else 'produced'} {round_.produced}, refused {round_.refused}"
                print(said + "".join(others), flush=True)
        if round_.refused:
            self.exitcode = EXIT_FAILED


def _span(text: str) -> int:
    seconds = span_seconds(text)
    if seconds is None or seconds > LONGEST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 90s, 30m, 12h or 7d")
    return seconds


def _pause(text: str) -> int:
    if not (seconds := _span(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no pause between rounds; 1s is the shortest")
    return seconds
