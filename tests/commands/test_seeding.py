"""Producing lines: bounded, counted, and clear about what failed."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import pytest

from site_spider.commands.seed import Line, Seeding
from site_spider.contracts.seed_log import Headers
from site_spider.errors import LogUnavailable, SinkRejected
from site_spider.seed.seed import seed_message
from site_spider.service import seed_producer


class ScriptedProducer:
    """Keeps what it was given; answers when told, or at once with what stands in `answers` for a key."""

    def __init__(self, answers: dict[bytes, Exception | None] | None = None) -> None:
        self.sent: list[tuple[str, bytes | None, bytes | None]] = []
        self.open: list[Future[None]] = []
        self.answers = answers

    def send(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = ()) -> Future[None]:
        future: Future[None] = Future()
        self.sent.append((topic, key, value))
        if self.answers is None:
            self.open.append(future)
        elif error := self.answers.get(key or b""):
            future.set_exception(error)
        else:
            future.set_result(None)
        return future

    def flush(self, timeout_seconds: float) -> int:
        return 0

    def close(self) -> None:
        """Nothing to do."""


def line(number: int, text: str = "http://a/") -> Line:
    return Line(number, text.encode(), len(text))


def test_options_fill_in_and_the_key_is_the_host() -> None:
    """The message is what `seed_message` makes of the line."""
    producer = ScriptedProducer({})
    message = partial(seed_message, task_id="job", method="HEAD", not_extract=True)
    work = Seeding(producer, "t", print, message)
    work.take(line(1, "http://Host.test:81/x"))
    work.flush()
    value = b'{"url":"http://Host.test:81/x","method":"HEAD","meta":{"task_id":"job","NotExtract":true}}'
    assert producer.sent == [("t", b"host.test", value)]
    assert (work.produced, work.refused) == (1, 0)


def test_bad_lines_and_refused_messages_are_counted_and_named() -> None:
    """Both kinds are told by line number, and the rest goes on."""
    complaints: list[tuple[int, str]] = []
    producer = ScriptedProducer({b"big": SinkRejected("too large")})
    work = Seeding(producer, "t", lambda number, reason: complaints.append((number, reason)))
    for number, text in enumerate(["http://a/", "nonsense", "http://big/", "http://b/"], start=1):
        work.take(line(number, text))
    work.flush()
    assert (work.produced, work.refused) == (2, 2)
    assert [number for number, _ in complaints] == [2, 3]
    assert complaints[1][1] == "too large"


def test_a_field_that_goes_into_meta_is_said_once() -> None:
    """However many lines have it: the whole file has the same form."""
    complaints: list[tuple[int, str]] = []
    work = Seeding(ScriptedProducer({}), "t", lambda number, reason: complaints.append((number, reason)))
    for number in range(1, 4):
        work.take(line(number, '{"url": "http://a/", "task_id": "x"}'))
    work.take(line(4, '{"url": "http://a/", "task_id": "x", "depth": 1}'))
    work.flush()
    assert (work.produced, work.refused) == (4, 0)
    assert complaints == [
        (1, "task_id stands beside the URL; it is taken as meta.task_id, here and below"),
        (4, "depth stands beside the URL; it is taken as meta.depth, here and below"),
    ]


def test_no_more_than_the_limit_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking one more waits for the oldest."""
    monkeypatch.setattr(seed_producer, "MOST_UNDER_WAY", 2)
    producer = ScriptedProducer()
    work = Seeding(producer, "t", print)
    work.take(line(1))
    work.take(line(2))
    assert work.produced == 0
    waited: list[int] = []

    def answer(self: Future[None], timeout: float | None = None) -> None:
        waited.append(producer.open.index(self))

    monkeypatch.setattr(Future, "result", answer)
    work.take(line(3))
    assert waited == [0]
    assert work.produced == 1


def test_bytes_under_way_are_limited_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few large seeds count like many small ones."""
    monkeypatch.setattr(seed_producer, "MOST_BYTES_UNDER_WAY", 10)
    work = Seeding(ScriptedProducer({}), "t", print)
    work.take(line(1))
    assert work.produced == 1


def test_a_log_that_gives_up_is_named_with_the_line() -> None:
    """Lines that were durable by then are counted."""
    work = Seeding(ScriptedProducer({b"b": LogUnavailable("gone")}), "t", print)
    work.take(line(1, "http://a/"))
    with pytest.raises(LogUnavailable, match=r"line 2 could not be produced: gone"):
        work.take(line(2, "http://b/"))
    work.abandon(0)
    assert work.produced == 1


def test_abandoning_counts_what_is_durable_and_does_not_wait_for_the_rest() -> None:
    """Those without an answer are left."""
    producer = ScriptedProducer()
    work = Seeding(producer, "t", print)
    for number in range(3):
        work.take(line(number))
    producer.open[0].set_result(None)
    producer.open[1].set_exception(LogUnavailable("gone"))
    work.abandon(0)
    assert work.produced == 1
