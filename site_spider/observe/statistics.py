"""Hands statistics documents to their stores and to the statistics topic.

Theory: a document is made every interval, when the crawl falls idle, and at its end. SITE_STATS_WHEN says
which of these the stores get; the topic gets each interval and the end, for whoever watches the fleet.
Each store has a delivery of its own, which retries in the background. One that is away gets a bounded
backlog; beyond it documents are dropped, which is said once for an outage. No store can end or slow the
crawl.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from string import Formatter
from typing import Any, Final

from site_spider import options, runtime
from site_spider.bounded import difference
from site_spider.contracts.seed_log import Producer, SeedLog
from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.engine.background import Background
from site_spider.engine.scrapy_parts import load_class
from site_spider.errors import ConfigError, SinkRejected, SiteSpiderError
from site_spider.observe.counters import counters
from site_spider.observe.snapshot import COUNTED_OF_DOWNLOADS, NAMES, Identity, Snapshot, Watched, snapshot, stats_of
from site_spider.options import SettingsView
from site_spider.outage import Outage
from site_spider.results.delivery import Delivery
from site_spider.results.document import encode

logger = logging.getLogger(__name__)

# --- The name that statistics documents give their spider: SITE_STATS_ID ---------------------------------

SETTING: Final = "SITE_STATS_ID"
LONGEST: Final = 300  # characters

_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


def statistics_id(settings: SettingsView, identity: Identity) -> str:
    """A format of names in braces, or what the callable of a dotted path returns. Raises ConfigError."""
    value = options.text(settings, SETTING, required=True)
    names = {
        "spider": identity.spider,
        "host": identity.host_name,
        "process": identity.pid,
        "start": int(identity.started_at),
        "group": identity.group,
        "topic": identity.topic,
    }
    found = _called(value, names) if _PATH.fullmatch(value) else _formatted(value, names)
    return found[:LONGEST]


def _formatted(value: str, names: Mapping[str, Any]) -> str:
    said = f"{SETTING} is {value!r}, but"
    try:
        fields = [(name, spec, turn) for _, name, spec, turn in Formatter().parse(value) if name is not None]
    except ValueError as error:
        raise ConfigError(f"{said} is no format: {error}. Such as {{spider}}-{{host}}-{{process}}.") from None
    for name, spec, conversion in fields:
        if name not in names or spec or conversion:
            known = ", ".join(f"{{{one}}}" for one in names)
            raise ConfigError(f"{said} a format has {known}, and nothing else in braces.")
    return value.format_map(names)


def _called(path: str, names: Mapping[str, Any]) -> str:
    made = load_class(SETTING, path)
    try:
        found = made(**names)
    except Exception as error:
        raise ConfigError(
            f"{SETTING} names {path}, which cannot be called with {', '.join(names)}: {error!r}."
        ) from error
    if not isinstance(found, str) or not found.strip():
        raise ConfigError(f"{SETTING} names {path}, which returns {found!r:.100}, but must return a name.")
    return found


# --- The statistics document: a snapshot of this process with what was added since the document before ---
# Its fields are fit for an index: none is named after a host, a partition or a task. Names from outside
# stand only in `failures`, `unknown_fields`, `counters` and `texts`, which are bounded.

MOMENTS: Final = ("interval", "idle", "close")

_TASKS_SECONDS: Final = 60.0  # from one document with the counts of tasks to the next: they are large
_AS_THEY_ARE: Final = (  # in the snapshot
    *NAMES,
    "uptime_seconds", "seeds", "conserved", "seconds_since_completion", "unknown_fields", "items", "reasons",
    "failures", "retries", "links", "queues", "waiting", "waiting_for_their_moment",
    "requests_out", "requests_in_progress", "pause", "paused_seconds", "log_is_away", "sinks", "proxies",
    "frontier", "bodies", "loop_lag_max_seconds", "clock_ahead_seconds", "memory",
)  # fmt: skip
_NO_HOSTS: Final = dict.fromkeys(("waiting", "ready", "busy", "delay", "back-off", "robots"), 0)
_NAMED_BY_OTHERS: Final = frozenset({"failures", "responses", "unknown_fields", "counters", "texts"})

_SUMS: Final = dict(zip(("num", "response_size", "request_size"), COUNTED_OF_DOWNLOADS, strict=True))


class Series:
    """Makes the documents of one receiver: numbers them, and tells what was added since the one before."""

    def __init__(self, statistics_id: str, now: float) -> None:
        self._id = statistics_id
        self._number = 0
        self._before: Mapping[str, int] = {}
        self._since = now  # monotonic
        self._tasks_at = -_TASKS_SECONDS
        self._latency: Mapping[str, Any] = {}

    def next(self, taken: Mapping[str, Any], stats: Mapping[Any, Any], moment: str, now: float) -> Record:
        """The document of a snapshot. `moment` is one of MOMENTS, `now` of the monotonic clock.

        One that is sent again overwrites itself.
        """
        pages, counted = taken["downloads"]["page"], counters(stats)
        found = {
            "@timestamp": taken["at"],
            "id": self._id,
            "moment": moment,
            "interval": self._number,
            "interval_seconds": round(now - self._since, 3),
            **_sums("total_", pages),
            **_sums("interval_", pages, self._before),
            "robots": _sums("", taken["downloads"]["robots"]),
            "responses": pages["statuses"],
            "oldest_seconds": max(taken["oldest_in_flight_seconds"].values(), default=0.0),
            "partitions": len(taken["seeds_in_flight"]),
            "latency": {
                name: {part: said for part, said in one.items() if part != "buckets"}
                for name, one in taken["latency"].items()
            },
            "interval_latency": {
                name: difference(one, self._latency.get(name)) for name, one in taken["latency"].items()
            },
            **{name: taken[name] for name in _AS_THEY_ARE},
            "hosts": {**_NO_HOSTS, **taken["hosts"]},  # a field that an index lacks cannot be shown
            "counters": counted.numbers,
            "texts": counted.texts,
            "counters_left_out": counted.left_out,
        }
        if moment != "interval" or now - self._tasks_at >= _TASKS_SECONDS:
            self._tasks_at = now
            found["tasks"] = taken["tasks"]
        key = f"{taken['process']}-{self._number}"
        self._number, self._since, self._before = self._number + 1, now, pages
        self._latency = taken["latency"]
        return _record(key, found)


def _record(key: str, document: Mapping[str, Any]) -> Record:
    return Record(key, document, len(json.dumps(document)))


def without_names(document: Mapping[str, Any]) -> dict[str, Any]:
    """Without the fields that take their names from outside: for an index that has too many fields."""
    return {name: value for name, value in document.items() if name not in _NAMED_BY_OTHERS}


def _sums(prefix: str, kind: Mapping[str, int], before: Mapping[str, int] | None = None) -> dict[str, int]:
    """Of one kind of download in a snapshot, less those of an earlier one."""
    return {f"{prefix}{name}": kind[of] - (before or {}).get(of, 0) for name, of in _SUMS.items()}


# --- The statistics topic: each process's snapshot, so that a console on any host sees the fleet ---------
# A message is JSON of at most LARGEST_BYTES under the name of its process. The topic keeps an hour or two.
# Nobody waits for it: while the log does not take the last messages, no more are sent.

LARGEST_STATISTICS_BYTES: Final = 256_000
KEPT_SECONDS: Final = 7_200.0

_KEEP_EVERY_SECONDS: Final = 60.0
_MOST_UNDER_WAY: Final = 3
_LEFT_OUT: Final = ("tasks", "counters", "texts", "failures", "unknown_fields", "newest_failures", "paused")


class StatsTopic:
    """Of one process; on the event loop's thread only."""

    def __init__(self, log: SeedLog, topic: str, background: Background) -> None:
        self._log, self._topic, self._background = log, topic, background
        self._producer: Producer | None = None
        self._under_way = 0
        self._outage = Outage(
            logger,
            f"Statistics do not reach the topic {topic} (SITE_STATS_TOPIC), so consoles on other hosts do "
            "not show this process. The crawl goes on",
            f"Statistics reach the topic {topic} again",
        )

    async def open(self) -> None:
        """Make the topic, let old messages go now and then, and take messages from now on."""
        while True:
            try:
                await asyncio.to_thread(self._log.keep, self._topic, KEPT_SECONDS)
                self._producer = self._producer or await asyncio.to_thread(self._log.producer, "statistics")
            except Exception as error:  # noqa: BLE001 - whatever it is, the crawl goes on
                if self._producer is None:
                    self._outage.goes_on(error)
                else:  # they can go a minute later
                    logger.debug("Old messages of the topic %s stay for now: %s", self._topic, error)
            await asyncio.sleep(_KEEP_EVERY_SECONDS)

    def send(self, process: str, document: Mapping[str, Any]) -> None:
        """Send a snapshot, unless earlier ones have not been taken."""
        if self._producer is None or self._under_way >= _MOST_UNDER_WAY:
            return
        try:
            value = bounded(document)
        except SinkRejected as error:
            self._outage.goes_on(error)
            return
        self._under_way += 1
        self._background.when_done(self._producer.send(self._topic, process.encode(), value), self._ended)

    async def close(self, seconds: float) -> None:
        """Let the last message through, if that does not take long."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.to_thread(_close, producer)

    def _ended(self, future: Future[Any]) -> None:
        self._under_way -= 1
        error = future.exception()
        if error is None:
            self._outage.is_over()
        elif self._producer is not None:
            self._outage.goes_on(error)


def _close(producer: Producer) -> None:
    try:
        producer.close()
    except Exception:
        logger.exception("The producer of statistics could not be closed")


def bounded(document: Mapping[str, Any]) -> bytes:
    """The document as JSON, without its largest parts where it is too large. Raises SinkRejected."""
    value = encode(document)
    kept = dict(document)
    for name in _LEFT_OUT:
        if len(value) <= LARGEST_STATISTICS_BYTES:
            return value
        kept.pop(name, None)
        value = encode({**kept, "shortened": True})
    if len(value) > LARGEST_STATISTICS_BYTES:
        raise SinkRejected(f"a snapshot has {len(value)} bytes, and {LARGEST_STATISTICS_BYTES} are allowed")
    return value


_WHEN: Final = "SITE_STATS_WHEN"
_ALWAYS: Final = frozenset({"interval", "close"})  # for the topic: a console shows each process, and its end
_CLOSE_SECONDS = 5.0
_MOST_WAITING = 1_000  # documents kept for a store that is away
_MOST_WAITING_BYTES = 16_000_000
_LOOK_SECONDS = 1.0  # whether the crawl has fallen idle


class StatisticsPlan:
    """What is written when, as SITE_STATS_* say. Raises ConfigError."""

    def __init__(self, settings: SettingsView, statistics_id: str) -> None:
        self.statistics_id = statistics_id
        self.interval_seconds = options.seconds(settings, "SITE_STATS_INTERVAL_SECONDS", minimum=0.1)
        self.moments = frozenset(options.names(settings, _WHEN))  # for the stores
        if not self.moments or not self.moments.issubset(MOMENTS):
            raise ConfigError(
                f"{_WHEN} is {settings.get(_WHEN)!r}, but must name one or several of {', '.join(MOMENTS)}."
            )
        has_topic = "kafka" in options.names(settings, "SITE_STATS_TO")  # at more moments
        self.topic_moments = _ALWAYS | self.moments if has_topic else _ALWAYS


@dataclass
class Statistics:
    """On the event loop's thread only."""

    _watched: Watched
    _deliveries: Sequence[Delivery]
    _topic: StatsTopic
    _plan: StatisticsPlan
    _background: Background

    def __post_init__(self) -> None:
        self._stores: list[_Store] = []
        self._tasks: list[asyncio.Task[None]] = []
        now = runtime.monotonic()
        self._series = Series(self._plan.statistics_id, now)
        self._topic_series = Series(self._plan.statistics_id, now)
        self._ended_before = 0  # seeds that had ended when the crawl was idle last

    def start(self) -> None:
        """Write from now on; the stores are waited for in the background."""
        self._stores = [_Store(delivery, self._background) for delivery in self._deliveries]
        self._tasks = [
            self._background.start(self._topic.open(), "statistics topic"),
            self._background.start(self._push_regularly(), "statistics"),
        ]

    async def close(self, seconds: float) -> None:
        """Write the last ones, for so long at most."""
        if not self._tasks:
            return
        seconds = min(seconds, _CLOSE_SECONDS)
        self._tasks.pop().cancel()
        try:
            await self._push("close")
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*(store.close(seconds) for store in self._stores), self._topic.close(seconds))

    async def _push_regularly(self) -> None:
        push_at = runtime.monotonic() + self._plan.interval_seconds
        while True:
            await asyncio.sleep(max(0.0, min(_LOOK_SECONDS, push_at - runtime.monotonic())))
            if runtime.monotonic() >= push_at:
                push_at = runtime.monotonic() + self._plan.interval_seconds
                await self._push("interval")
            if "idle" in self._plan.moments and self._has_fallen_idle():
                await self._push("idle")

    def _has_fallen_idle(self) -> bool:
        """Whether nothing is in flight any more, and something has ended since that was so last."""
        ledger = self._watched.ledger
        ended = sum(ledger.outcomes.values())
        if ledger.in_flight or ended == self._ended_before:
            return False
        self._ended_before = ended
        return True

    async def _push(self, moment: str) -> None:
        taken = await snapshot(self._watched)
        self._note_seeds(taken)
        stats, now = stats_of(self._watched), runtime.monotonic()
        if moment in self._plan.topic_moments:
            made = self._topic_series.next(taken, stats, moment, now)
            self._topic.send(taken["process"], {**made.document, **taken})
        if moment in self._plan.moments:
            made = self._series.next(taken, stats, moment, now)
            for store in self._stores:
                store.submit(made)

    def _note_seeds(self, taken: Snapshot) -> None:
        collector = self._watched.crawler.stats
        assert collector is not None
        for name, count in taken["seeds"].items():
            collector.set_value(f"seeds/{name}", count)
        if not taken["conserved"]:
            logger.error("Seeds are not conserved, which is a bug: %s", taken["seeds"])


class _Store:
    """One store with its delivery."""

    def __init__(self, delivery: Delivery, background: Background) -> None:
        self._name = delivery.sink.name
        self._delivery = delivery
        self._is_dropping = False
        self._said_too_many = False
        self._opening = background.start(self._open(), f"statistics for {self._name}")

    async def _open(self) -> None:
        try:
            await self._delivery.open(wait_seconds=float("inf"))
        except SiteSpiderError as error:
            logger.warning("No statistics are written to %s: %s", self._name, error)
        except Exception:
            logger.exception("No statistics are written to %s, which failed unexpectedly", self._name)

    async def close(self, seconds: float) -> None:
        """A crawl may be over before its store has opened: what waits is written all the same."""
        until = runtime.monotonic() + seconds
        await asyncio.wait([self._opening], timeout=seconds)
        self._opening.cancel()
        await self._delivery.close(max(0.0, until - runtime.monotonic()))

    def submit(self, made: Record) -> None:
        delivery = self._delivery
        is_full = delivery.backlog_count >= _MOST_WAITING or delivery.backlog_bytes >= _MOST_WAITING_BYTES
        if is_full and not self._is_dropping:
            logger.warning(
                "The store of statistics %s is away, and %d documents wait for it: new ones are dropped "
                "until it is there. The crawl goes on",
                self._name,
                delivery.backlog_count,
            )
        self._is_dropping = is_full
        if not is_full:
            delivery.submit(made, partial(self._answered, made))

    def _answered(self, made: Record, verdict: Verdict) -> None:
        """One that is refused is sent once more, without the names that an index may have too many of."""
        if verdict.answer is not Answer.REJECTED:
            return
        if not self._said_too_many:
            self._said_too_many = True
            logger.warning(
                "The store of statistics %s refuses a document, so those it refuses are written without "
                "counters and failures by name: %s",
                self._name,
                verdict.reason,
            )
        try:
            # nobody's seed, and the delivery logs what is refused
            self._delivery.submit(_record(made.key, without_names(made.document)), lambda _verdict: None)
        except SiteSpiderError:  # the crawl has ended meanwhile
            logger.debug("The last statistics were refused by %s", self._name)
