"""`scrapy seed`: produces a seed for each line of a file."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from tqdm import tqdm

from site_spider import options
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.contracts.seed_log import MessagePlace, Producer, SeedLog
from site_spider.errors import LogUnavailable, SeedError, SinkRejected
from site_spider.intake import seed_queue
from site_spider.observe.progress import LagGate, group_gate
from site_spider.seed.fields import MAX_MESSAGE_BYTES
from site_spider.seed.seed import seed_message
from site_spider.seed.tiers import CrawlTopics
from site_spider.service import config as parts
from site_spider.service.config import check_ends_are_told
from site_spider.tasks.control_log import TaskProducer
from site_spider.text import for_log, refused

# --- seed lines: reads a file of seeds line by line, however long the file or a line of it is ------------

_BLANKS = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """A line with something on it; `size_bytes` is what was read since the last one."""

    number: int
    raw: bytes | None  # None: longer than any seed may be
    size_bytes: int

    def text(self) -> str:
        """Raises SeedError when it is too long or not UTF-8."""
        if self.raw is None:
            raise refused("line", f"longer than {MAX_MESSAGE_BYTES} bytes")
        try:
            return self.raw.decode()
        except UnicodeDecodeError as error:
            raise refused("line", f"not UTF-8 at byte {error.start + 1}") from None


def seed_lines(stream: BinaryIO) -> Iterator[Line]:
    """The lines that are neither blank nor a comment (#). Raises OSError when reading fails."""
    number = unread = 0
    while raw := stream.readline(MAX_MESSAGE_BYTES + 1):
        number += 1
        unread += len(raw)
        is_whole = len(raw) <= MAX_MESSAGE_BYTES or raw.endswith(b"\n")
        if not is_whole:
            unread += _skip_line(stream)
        text = (raw.removeprefix(_BYTE_ORDER_MARK) if number == 1 else raw).strip(_BLANKS)
        if text and not text.startswith(b"#"):
            yield Line(number, text if is_whole else None, unread)
            unread = 0


def _skip_line(stream: BinaryIO) -> int:
    """Read up to the end of the line; returns how many bytes that were."""
    skipped = 0
    while chunk := stream.readline(MAX_MESSAGE_BYTES):
        skipped += len(chunk)
        if chunk.endswith(b"\n"):
            break
    return skipped


# --- seeding: produces seeds from lines, with a bounded number under way, and counts them ----------------

MOST_UNDER_WAY = 5_000
MOST_BYTES_UNDER_WAY = 32_000_000


class _Sent(NamedTuple):
    number: int
    size_bytes: int
    future: Future[MessagePlace]


class Seeding:
    """Takes lines, one after another. `complain(number, reason)` hears of every line that was refused,
    and once of each field that was moved into meta.

    When the log gives up on a line, `take` and `finish` raise LogUnavailable, which names it.
    """

    def __init__(  # noqa: PLR0913 - what lines leave out
        self,
        producer: Producer,
        topic: str,
        complain: Callable[[int, str], None],
        *,
        task_id: str | None = None,
        method: str | None = None,
        not_extract: bool = False,
        needs_url: bool = True,
        settled: Callable[[MessagePlace], None] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._settled = settled or (lambda _place: None)  # hears where each seed is
        self._before = before  # is called before each seed is sent
        self.produced = 0
        self.refused = 0
        self._send = partial(producer.send, topic)
        self._complain = complain
        self._message = partial(
            seed_message, task_id=task_id, method=method, not_extract=not_extract, needs_url=needs_url
        )
        self._moved: set[str] = set()
        self._under_way: deque[_Sent] = deque()
        self._bytes = 0

    def take(self, line: Line) -> None:
        """Produce the seed of a line; waits while too many are under way."""
        try:
            key, value = self._message(line.text(), moved=partial(self._say_moved, line.number))
        except SeedError as error:
            self._refuse(line.number, error.reason)
            return
        if self._before is not None:
            self._before()
        self._under_way.append(_Sent(line.number, len(value), self._send(key, value)))
        self._bytes += len(value)
        while self._under_way and (self._is_full() or self._under_way[0].future.done()):
            self._settle()

    def finish(self) -> None:
        """Wait until the log has answered to all that is under way."""
        while self._under_way:
            self._settle()

    def abandon(self, timeout_seconds: float) -> None:
        """Count what is durable after all, once something went wrong."""
        while self._under_way:
            future = self._under_way.popleft().future
            try:
                error = future.exception(timeout_seconds)
            except TimeoutError:
                return
            if error is None:
                self.produced += 1
                self._settled(future.result())

    def _say_moved(self, number: int, names: list[str]) -> None:
        for name in names:
            if name not in self._moved:
                self._moved.add(name)
                self._complain(
                    number, f"{name} stands beside the URL; it is taken as meta.{name}, here and below"
                )

    def _is_full(self) -> bool:
        return len(self._under_way) > MOST_UNDER_WAY or self._bytes > MOST_BYTES_UNDER_WAY

    def _settle(self) -> None:
        """Wait for the oldest."""
        sent = self._under_way.popleft()
        self._bytes -= sent.size_bytes
        try:
            place = sent.future.result()
        except SinkRejected as error:
            self._refuse(sent.number, str(error))
        except LogUnavailable as error:
            raise LogUnavailable(f"line {sent.number} could not be produced: {error}") from error
        else:
            self.produced += 1
            self._settled(place)

    def _refuse(self, number: int, reason: str) -> None:
        self.refused += 1
        self._complain(number, reason)


_CHECK_SECONDS = 10.0
_LAST_CHANCE_SECONDS = 1.0  # for what is under way when the log is given up


class Command(SiteCommand):
    """Reads lines, complains about bad ones, says at the end how many were produced."""

    max_arguments = 1
    usage = "[options] [FILE|-]"
    summary = "Produce a seed for each line of a file"
    description = (
        "Produces a seed to the seed topic for each line of FILE (- or none: standard input), keyed by host. "
        "A line is a URL or a JSON seed, in UTF-8. Blank lines and lines that begin with # are skipped. "
        "A bad line is refused with its number and the reason; the other lines are produced. The last line "
        "of output counts both. The exit code is 1 if a line was refused or could not be produced. "
        "An option applies to lines that do not set the field themselves."
    )
    examples = """
        scrapy seed urls.txt
        scrapy seed urls.txt --task-id spring --not-extract
        echo '{"url": "http://example.com/", "meta": {"url_id": "42"}}' | scrapy seed -
        scrapy seed urls.txt --task-id spring --close --max-lag 100000
        scrapy seed urls.txt --method HEAD --topic more-seeds
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        said = "produce to T instead of SITE_SEED_TOPIC: another tier of SITE_SEED_TOPICS, say"
        parser.add_argument("--topic", metavar="T", help=said)
        parser.add_argument("--task-id", metavar="ID", help="the task that these seeds belong to")
        parser.add_argument(
            "--close", action="store_true", help="close the task: nobody produces more seeds of --task-id"
        )
        said = (
            "wait while more than N messages wait for the group; task:N: more than N of those that this "
            "command has produced for --task-id"
        )
        parser.add_argument("--max-lag", type=_lag, metavar="N|task:N", help=said)
        parser.add_argument("--method", metavar="M", help="the HTTP method (default: GET)")
        parser.add_argument("--not-extract", action="store_true", help="do not follow links")

    def work(self, opts: argparse.Namespace) -> None:
        name = opts.args[0] if opts.args else "-"
        if opts.close and not opts.task_id:
            self.refuse("--close needs --task-id, which names the task")
        if opts.max_lag and opts.max_lag.is_of_task and not opts.task_id:
            self.refuse("--max-lag task:N needs --task-id, which names the task")
        try:
            with _opened(name) as stream, closing(parts.seed_log(self.options)) as log:
                log.check(_CHECK_SECONDS)
                self._produce(stream, log, opts)
        except OSError as error:
            self.complain(f"{name} cannot be read: {error.strerror or error}")
            self.exitcode = EXIT_FAILED

    def _produce(self, stream: BinaryIO, log: SeedLog, opts: argparse.Namespace) -> None:
        if opts.close or (opts.max_lag and opts.max_lag.is_of_task):
            check_ends_are_told(self.options)
        topics = CrawlTopics.beside(self.options, opts.topic)
        topic = opts.topic or topics.seeds
        with closing(log.producer()) as producer:
            task = TaskProducer(log, producer, topics, opts.task_id) if opts.task_id else None
            if task is not None:
                task.begin()
            seeding = Seeding(
                producer,
                topic,
                _complain,
                task_id=opts.task_id,
                method=opts.method,
                not_extract=opts.not_extract,
                needs_url=not hasattr(self.spider_class, seed_queue.METHOD),
                settled=None if task is None else task.sent,
                before=self._gate(log, topic, opts.max_lag, task, lambda: seeding.finish()),  # noqa: PLW0108 - made below
            )
            is_whole = False
            try:
                with _bar(stream) as bar:
                    for line in seed_lines(stream):
                        seeding.take(line)
                        bar.update(line.size_bytes)
                    seeding.finish()
                is_whole = True
            finally:
                seeding.abandon(_LAST_CHANCE_SECONDS)
                if task is not None:
                    task.end(closes=opts.close and is_whole)
                print(f"produced {seeding.produced}, refused {seeding.refused}", flush=True)
        if not opts.spider and seeding.produced:
            self._say_who_reads(topic)
        if seeding.refused:
            self.exitcode = EXIT_FAILED

    def _say_who_reads(self, topic: str) -> None:
        """Where spiders have topics of their own: whoever names no spider may have meant another one."""
        topics = self.topics_of_spiders()
        if len(set(topics.values())) < 2:
            return
        readers = [name for name, read in topics.items() if topic in read]
        others = [f"{name} reads {', '.join(read)}" for name, read in topics.items() if topic not in read]
        said = f"Topic {topic} is read by {', '.join(readers) or 'no spider'}"
        _say(f"{said}; {'; '.join(others)} (scrapy seed --spider NAME)." if others else f"{said}.")

    def _gate(
        self,
        log: SeedLog,
        topic: str,
        lag: _Lag | None,
        task: TaskProducer | None,
        finish: Callable[[], None],
    ) -> Callable[[], None] | None:
        if lag is None:
            return None
        if lag.is_of_task and task is not None:
            gate = LagGate(task.waiting, lag.most, "seeds of the task wait", _say)
        else:
            group = options.text(self.options, "SITE_CONSUMER_GROUP", required=True)
            gate = group_gate(log, topic, group, lag.most, _say)

        def wait() -> None:
            if gate.is_shut:
                finish()  # what is under way counts as well
            gate.wait()

        return wait


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name != "-":
        with Path(name).open("rb") as stream:
            yield stream
        return
    if sys.stdin.isatty():
        print("Reading seeds, a URL or a JSON object a line; Ctrl-D ends.", file=sys.stderr)
    yield sys.stdin.buffer


def _bar(stream: BinaryIO) -> tqdm[NoReturn]:
    """A progress bar on stderr if that is a terminal; without an end when the length is not known."""
    size = Path(f"/dev/fd/{stream.fileno()}").stat().st_size if stream.seekable() else 0
    return tqdm(
        total=size or None,
        desc="seeds",
        unit="B",
        unit_scale=True,
        disable=None,
        file=sys.stderr,
        leave=False,
    )


class _Lag(NamedTuple):
    most: int
    is_of_task: bool


def _lag(text: str) -> _Lag:
    number = text.removeprefix("task:")
    if not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0, nor one behind task:")
    return _Lag(int(number), number != text)


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)


def _complain(number: int, reason: str) -> None:
    tqdm.write(for_log(f"line {number}: {reason}", one_line=True), file=sys.stderr)
