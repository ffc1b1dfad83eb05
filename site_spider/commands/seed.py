"""`scrapy seed`: produces a seed for each line of a file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from site_spider.commands.output import complain_above_bar, number, progress_bar
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand, checked
from site_spider.contracts.seed_log import MessagePlace, Producer, SeedLog
from site_spider.errors import LogUnavailable, SeedError, SinkRejected, SiteSpiderError
from site_spider.intake import seed_queue
from site_spider.seed.fields import MAX_MESSAGE_BYTES, identifier
from site_spider.seed.seed import CALLBACKS, seed_message
from site_spider.seed.topics import CrawlTopics
from site_spider.service import config as parts
from site_spider.service.config import check_ends_are_told
from site_spider.service.seed_producer import LagGate, SeedStream, gates_of
from site_spider.tasks.closing import TaskProducer
from site_spider.text import refused

# --- seed lines: reads a file of seeds line by line, however long the file or a line of it is ------------

_BLANKS = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Line(NamedTuple):
    """A line with something on it."""

    number: int
    raw: bytes | None  # None: longer than any seed may be

    def text(self) -> str:
        """Raises SeedError when it is too long or not UTF-8."""
        if self.raw is None:
            raise refused("line", f"longer than {MAX_MESSAGE_BYTES} bytes")
        try:
            return self.raw.decode()
        except UnicodeDecodeError as error:
            raise refused("line", f"not UTF-8 at byte {error.start + 1}") from None


def seed_lines(stream: BinaryIO, step: Callable[[int], object]) -> Iterator[Line]:
    """The lines that are neither blank nor a comment (#); `step` hears how much was read. Raises OSError."""
    number = 0
    while raw := stream.readline(MAX_MESSAGE_BYTES + 1):
        step(len(raw))
        number += 1
        is_whole = len(raw) <= MAX_MESSAGE_BYTES or raw.endswith(b"\n")
        piece = b"" if is_whole else raw
        while piece and not piece.endswith(b"\n"):
            piece = stream.readline(MAX_MESSAGE_BYTES)
            step(len(piece))
        text = (raw.removeprefix(_BYTE_ORDER_MARK) if number == 1 else raw).strip(_BLANKS)
        if text and not text.startswith(b"#"):
            yield Line(number, text if is_whole else None)


# --- seeding: produces seeds from lines ------------------------------------------------------------------


class Seeding(SeedStream):
    """Takes lines, one after another. `complain(number, reason)` hears of every line that was refused,
    and once of each field that was moved into meta. `message` makes the message of a line.

    When the log gives up on a line, `take` and `flush` raise LogUnavailable, which names it.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        complain: Callable[[int, str], None],
        message: Callable[..., tuple[bytes, bytes]] = seed_message,
        task: TaskProducer | None = None,
        gates: Iterable[LagGate] = (),
    ) -> None:
        super().__init__(producer, topic, task, gates)
        self.refused = 0
        self._complain = complain
        self._message = message
        self._moved: set[str] = set()

    def take(self, line: Line) -> None:
        try:
            key, value = self._message(line.text(), moved=partial(self._say_moved, line.number))
        except SeedError as error:
            self._refuse(line.number, error.reason)
        else:
            self.send(key, value, line.number)

    def _say_moved(self, number: int, names: list[str]) -> None:
        for name in names:
            if name not in self._moved:
                self._moved.add(name)
                self._complain(number, f"{name} stands beside the URL; it is taken as meta.{name}, here and below")

    def _answered(self, number: int, future: Future[MessagePlace]) -> None:
        try:
            super()._answered(number, future)
        except SinkRejected as error:
            self._refuse(number, str(error))
        except LogUnavailable as error:
            raise LogUnavailable(f"line {number} could not be produced: {error}") from error

    def _refuse(self, number: int, reason: str) -> None:
        self.refused += 1
        self._complain(number, reason)


class Command(SiteCommand):
    """Reads lines, complains about bad ones, says at the end how many were produced."""

    max_arguments = 1
    takes_files = True
    usage = "[options] [FILE|-]"
    summary = "Produce a seed for each line of a file"
    description = (
        "Produces a seed, keyed by host, for each line of FILE (- or none: standard input): a URL or a JSON "
        "seed, in UTF-8. Blank lines and lines that begin with # are skipped. "
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
        parser.add_argument("--topic", metavar="T", type="topic", help=said)
        said, task_id = "the task that these seeds belong to", checked(partial(identifier, "the id"))
        parser.add_argument("--task-id", metavar="ID", type=task_id, help=said)
        parser.add_argument(
            "--close", action="store_true", help="close the task: nobody produces more seeds of --task-id"
        )
        said = (
            "wait while more than N messages wait for the group; task:N: more than N of those that this "
            "command has produced for --task-id"
        )
        parser.add_argument("--max-lag", type=_lag, default=(None, None), metavar="N|task:N", help=said)
        parser.add_argument("--method", metavar="M", help="the HTTP method (default: GET)")
        parser.add_argument("--not-extract", action="store_true", help="do not follow links")

    def work(self, opts: argparse.Namespace) -> None:
        name = opts.args[0] if opts.args else "-"
        if opts.close and not opts.task_id:
            self.refuse("--close needs --task-id, which names the task")
        if opts.max_lag[1] and not opts.task_id:
            self.refuse("--max-lag task:N needs --task-id, which names the task")
        with _opened(name) as stream, closing(parts.seed_log(self.options)) as log:
            log.check(parts.CHECK_SECONDS)
            self._produce(name, stream, log, opts)

    def _produce(self, name: str, stream: BinaryIO, log: SeedLog, opts: argparse.Namespace) -> None:
        of_group, of_task = opts.max_lag
        if opts.close or of_task:
            check_ends_are_told(self.options)
        topics = CrawlTopics.beside(self.options, opts.topic)
        topic = opts.topic or topics.seeds
        with closing(log.producer()) as producer:
            task = TaskProducer(log, producer, topics, opts.task_id) if opts.task_id else None
            message = partial(
                seed_message,
                task_id=opts.task_id,
                method=opts.method,
                not_extract=opts.not_extract,
                needs_url=not hasattr(self.spider_class, seed_queue.METHOD),
                callbacks=_callbacks_of(self.spider_class),
            )
            gates = gates_of(self.options, log, topic, task, of_group, of_task, complain_above_bar)
            seeding = Seeding(producer, topic, _complain, message, task, gates)
            is_whole, size = False, os.fstat(stream.fileno()).st_size if stream.seekable() else 0
            try:
                with progress_bar("seeds", "B", size or None) as bar:
                    for line in _lines(name, stream, bar.update):
                        seeding.take(line)
                    seeding.flush()
                is_whole = True
            finally:
                seeding.end(closes=opts.close and is_whole)
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
        others = [
            f"; spider {name} reads topic {', '.join(read)} (--spider {name})"
            for name, read in topics.items()
            if topic not in read
        ]
        complain_above_bar(
            f"Topic {topic} is read by {'spider ' if readers else 'no spider'}{', '.join(readers)}{''.join(others)}."
        )


def _callbacks_of(spider_class: object) -> frozenset[str] | None:
    """None where only the spider itself knows: in a property, say."""
    names = getattr(spider_class, "seed_callbacks", CALLBACKS)
    return frozenset(names) if isinstance(names, Iterable) else None


def _opened(name: str) -> AbstractContextManager[BinaryIO]:
    if name != "-":
        with _said(name):
            return Path(name).open("rb")
    if sys.stdin.isatty():
        print("Reading seeds, a URL or a JSON object a line; Ctrl-D ends.", file=sys.stderr)
    return nullcontext(sys.stdin.buffer)


def _lines(name: str, stream: BinaryIO, step: Callable[[int], object]) -> Iterator[Line]:
    with _said(name):
        yield from seed_lines(stream, step)


@contextmanager
def _said(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SiteSpiderError(f"{name} cannot be read: {error.strerror or error}") from None


def _lag(text: str) -> tuple[int | None, int | None]:
    """Of the group, and of the task."""
    most = number(text.removeprefix("task:"))
    return (None, most) if text.startswith("task:") else (most, None)


def _complain(number: int, reason: str) -> None:
    complain_above_bar(f"line {number}: {reason}")
