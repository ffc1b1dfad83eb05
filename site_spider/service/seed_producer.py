"""Produces seeds from Python, as `scrapy seed` does from files."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

from scrapy.settings import BaseSettings, Settings
from scrapy.utils.project import get_project_settings

from site_spider import options, runtime
from site_spider.contracts.seed_log import MessagePlace, Producer, SeedLog
from site_spider.errors import ConfigError, SeedError
from site_spider.observe.progress import lag_of
from site_spider.seed.fields import identifier
from site_spider.seed.seed import seed_message
from site_spider.seed.topics import CrawlTopics
from site_spider.service import config
from site_spider.service.config import check_ends_are_told
from site_spider.service.environment import apply_environment
from site_spider.tasks.closing import TaskProducer
from site_spider.text import refused

MOST_UNDER_WAY = 5_000
MOST_BYTES_UNDER_WAY = 32_000_000
_LAST_CHANCE_SECONDS = 1.0  # for what is under way when an earlier seed was refused, or the log is given up


class SeedStream:
    """Sends seeds to a topic, a bounded number at a time, and counts those that are durable.

    Their task is told that this begins and ends, and where each is. Before a seed is sent the gates let it pass.
    """

    def __init__(
        self, producer: Producer, topic: str, task: TaskProducer | None = None, gates: Iterable[LagGate] = ()
    ) -> None:
        self.produced = 0
        self._task = task
        self._gates = tuple(gates)
        self._send = partial(producer.send, topic)
        self._under_way: deque[tuple[int, int, Future[MessagePlace]]] = deque()  # with number and size
        self._bytes = 0
        if task is not None:
            task.begin()

    def send(self, key: bytes, value: bytes, number: int = 0) -> None:
        """Waits while too many are under way, or the gates are shut. `number` is for `_answered`."""
        for gate in self._gates:
            gate.wait(self.flush)
        self._under_way.append((number, len(value), self._send(key, value)))
        self._bytes += len(value)
        while self._under_way and (self._is_full() or self._under_way[0][2].done()):
            self._settle()

    def flush(self) -> None:
        """Return when all that was sent is durable."""
        while self._under_way:
            self._settle()

    def end(self, *, closes: bool) -> None:
        """No more is sent; `closes`: to the task by nobody. What is durable though something went wrong counts."""
        with suppress(TimeoutError):
            while self._under_way:
                future = self._under_way.popleft()[2]
                if future.exception(_LAST_CHANCE_SECONDS) is None:
                    self._answered(0, future)
        if self._task is not None:
            self._task.end(closes=closes)

    def _is_full(self) -> bool:
        return len(self._under_way) > MOST_UNDER_WAY or self._bytes > MOST_BYTES_UNDER_WAY

    def _settle(self) -> None:
        number, size_bytes, future = self._under_way.popleft()
        self._bytes -= size_bytes
        self._answered(number, future)

    def _answered(self, number: int, future: Future[MessagePlace]) -> None:  # noqa: ARG002 - for those with lines
        place = future.result()
        self.produced += 1
        if self._task is not None:
            self._task.sent(place)


# --- lag gates: keep a producer from running too far ahead (--max-lag, --max-task-lag) --------------------

_PAUSE_SECONDS = 1.0
_SAY_SECONDS = 10.0  # from one line about the wait to the next


@dataclass
class LagGate:
    """Keeps a producer from running too far ahead of a consumer group.

    `wait`, before each seed, returns when at most `most` messages wait, this one included.

    `lag` is asked again only when what it left room for is used up, and `settle` before that, since what is
    under way counts as well. `say` hears of a wait now and then; `what` is what waits.
    """

    _lag: Callable[[], int]
    _most: int
    _what: str
    _say: Callable[[str], None]
    _room: int = 0
    _said_at: float = -_SAY_SECONDS

    def wait(self, settle: Callable[[], None]) -> None:
        """Blocks. Raises LogUnavailable."""
        if self._room <= 0:
            settle()
        while self._room <= 0:
            lag = self._lag()
            self._room = self._most - lag
            if self._room <= 0:
                self._report(lag)
                runtime.sleep(_PAUSE_SECONDS)
        self._room -= 1

    def _report(self, lag: int) -> None:
        if runtime.monotonic() >= self._said_at + _SAY_SECONDS:
            self._said_at = runtime.monotonic()
            self._say(f"waiting: {lag:,} {self._what}, at most {self._most:,} may")


def gates_of(
    settings: BaseSettings,
    log: SeedLog,
    topic: str,
    task: TaskProducer | None,
    max_lag: int | None,
    max_task_lag: int | None,
    say: Callable[[str], None],
) -> Iterator[LagGate]:
    """What keeps a producer from running too far ahead. Raises ConfigError."""
    if max_lag is not None:
        group = options.text(settings, "SITE_CONSUMER_GROUP", required=True)
        yield LagGate(partial(lag_of, log, (topic,), group), max_lag, f"messages wait for group {group}", say)
    if max_task_lag is not None and task is not None:
        yield LagGate(task.waiting, max_task_lag, "seeds of the task wait", say)


class SeedProducer:
    """Sends seeds to the seed topic: checked as the crawler checks them, keyed by host.

        with SeedProducer(task_id="spring", max_lag=100_000, closes_task=True) as seeds:
            seeds.send("https://example.com/")
            seeds.send({"url": "https://example.com/a", "meta": {"url_id": "42"}})

    Settings are those of the project around, the environment, and `settings`, in this order. At the end of
    the block all seeds are durable; `produced` counts them. With `closes_task` the task is closed then,
    unless the block was left by an exception. One thread uses an object. Raises ConfigError and
    LogUnavailable.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | BaseSettings | None = None,
        *,
        topic: str | None = None,
        task_id: str | None = None,
        max_lag: int | None = None,
        max_task_lag: int | None = None,
        closes_task: bool = False,
    ) -> None:
        _check(task_id, closes_task=closes_task, max_lag=max_lag, max_task_lag=max_task_lag)
        known = _settings(settings)
        if closes_task or max_task_lag:
            check_ends_are_told(known)
        topics = CrawlTopics.beside(known, topic)
        self._task_id = task_id
        self._closes = closes_task
        topic = topic or topics.seeds
        with ExitStack() as opened:
            log = opened.enter_context(closing(config.seed_log(known)))
            log.check(config.CHECK_SECONDS)
            producer = opened.enter_context(closing(log.producer()))
            task = None if task_id is None else TaskProducer(log, producer, topics, task_id)
            gates = gates_of(known, log, topic, task, max_lag, max_task_lag, lambda _line: None)
            self._stream = SeedStream(producer, topic, task, gates)
            self._opened = opened.pop_all()
        self._is_closed = False

    @property
    def produced(self) -> int:
        """How many seeds are durable."""
        return self._stream.produced

    def send(self, seed: str | Mapping[str, Any]) -> None:
        """Send a URL or a seed (see docs/seeds-and-results.md). Waits while too much is under way or waits.

        Raises SeedError when it is no seed; SinkRejected when the log refuses an earlier one. Which names
        `callback` may have is known by the spider alone.
        """
        if self._is_closed:
            raise ConfigError("The SeedProducer is closed. Make another one.")
        self._stream.send(*seed_message(_line(seed), task_id=self._task_id, callbacks=None))

    def flush(self) -> None:
        """Return when all that was sent is durable."""
        self._stream.flush()

    def close(self) -> None:
        """Flush, say that this producer has ended, and close the task if that was asked for."""
        SeedProducer.__exit__(self, None, None, None)  # not of a subclass, which may close here

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `close`; left by an exception, the task stays open."""
        if self._is_closed:
            return
        self._is_closed = True
        is_whole = False
        with self._opened:
            try:
                self.flush()
                is_whole = kind is None
            finally:
                self._stream.end(closes=self._closes and is_whole)


def _check(task_id: str | None, *, closes_task: bool, max_lag: int | None, max_task_lag: int | None) -> None:
    try:
        identifier("task_id", task_id)
    except SeedError as error:
        raise ConfigError(error.reason) from None
    for name, value in (("closes_task", closes_task or None), ("max_task_lag", max_task_lag)):
        if value is not None and not task_id:
            raise ConfigError(f"{name} is {value}, but task_id names no task. Name the task.")
    for name, most in (("max_lag", max_lag), ("max_task_lag", max_task_lag)):
        if most is not None and most < 1:
            raise ConfigError(f"{name} is {most}, but must be 1 or more. Leave it out for no limit.")


def _line(seed: str | Mapping[str, Any]) -> str:
    if isinstance(seed, str):
        return seed
    try:
        return json.dumps(dict(seed), ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise refused("seed", f"it cannot be written as JSON: {error}") from None


def _settings(given: Mapping[str, Any] | BaseSettings | None) -> Settings:
    """Ours, over them the project's, over them the environment, over all those given."""
    settings = Settings()
    settings.setmodule("site_spider.settings", priority="default")
    if isinstance(given, BaseSettings):
        settings.update(given)
        return settings
    settings.update(get_project_settings())
    apply_environment(settings)
    settings.update(dict(given or {}), priority="cmdline")
    return settings
