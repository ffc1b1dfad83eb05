"""Lines of a file of seeds, however long, and producing them: bounded, counted, and clear about what failed."""

from __future__ import annotations

import io
from concurrent.futures import Future

import pytest

from site_spider.commands.seed import Line, Seeding, seed_lines
from site_spider.contracts.seed_log import Headers
from site_spider.errors import LogUnavailable, SeedError, SinkRejected
from site_spider.seed.fields import MAX_MESSAGE_BYTES
from site_spider.service import seed_producer


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"\xef\xbb\xbfhttp://a/\r\n\n  \t\n# no\n  # no\nhttp://b/", [(1, "http://a/"), (6, "http://b/")]),
        (b"\xef\xbb\xbf# no\nhttp://b/\n", [(2, "http://b/")]),  # the mark does not hide the comment
        *((b"x" * MAX_MESSAGE_BYTES + ending, [(1, "x" * MAX_MESSAGE_BYTES)]) for ending in (b"", b"\n")),
    ],
)
def test_a_line_keeps_its_number_and_the_sizes_add_up_to_the_file(raw: bytes, found: list[tuple[int, str]]) -> None:
    """Whatever ends it, and whatever was skipped before it; the limit itself is not too long."""
    lines = list(seed_lines(io.BytesIO(raw)))
    assert [(line.number, line.text()) for line in lines] == found
    assert sum(line.size_bytes for line in lines) == len(raw)


def test_a_line_longer_than_any_seed_is_never_held_as_a_whole() -> None:
    """It is refused, and the next one follows; no read asks for more than the limit."""
    asked: list[int] = []

    class Stream(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            asked.append(size or 0)
            return super().readline(size)

    raw = b"x" * (3 * MAX_MESSAGE_BYTES) + b"\nhttp://b/\n"
    first, second = seed_lines(Stream(raw))
    with pytest.raises(SeedError, match="longer than"):
        first.text()
    assert (second.number, second.text()) == (2, "http://b/")
    assert first.size_bytes + second.size_bytes == len(raw)
    assert max(asked) <= MAX_MESSAGE_BYTES + 1


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
    monkeypatch.setattr(seed_producer, "MOST_BYTES_UNDER_WAY", 10)  # a few large seeds count like many small ones
    work.take(line(4))
    assert (waited, work.produced) == ([0, 1, 2, 3], 4)


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
