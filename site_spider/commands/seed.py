"""`scrapy seed`: produces a seed for each line of a file."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from tqdm import tqdm

from site_spider import options
from site_spider.commands.seed_lines import seed_lines
from site_spider.commands.seeding import Seeding
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.contracts.seed_log import MessagePlace, SeedLog
from site_spider.intake import intake
from site_spider.observe.progress import LagGate, group_gate
from site_spider.service import plugins as parts
from site_spider.service.config import check_ends_are_told
from site_spider.tasks.control_log import TaskProducer
from site_spider.tasks.follower import TaskTopics
from site_spider.text import for_log

_CHECK_SECONDS = 10.0
_LAST_CHANCE_SECONDS = 1.0  # for what is under way when the log is given up


class Command(SiteCommand):
    """Reads lines, complains about bad ones, says at the end how many were produced."""

    max_arguments = 1
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

    def syntax(self) -> str:
        """As Scrapy asks."""
        return "[options] [FILE|-]"

    def short_desc(self) -> str:
        """As Scrapy asks."""
        return "Produce a seed for each line of a file"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As Scrapy asks."""
        super().add_options(parser)
        parser.add_argument(
            "--topic",
            metavar="T",
            help="produce to T instead of SITE_SEED_TOPIC: another tier of SITE_SEED_TOPICS, say",
        )
        parser.add_argument("--task-id", metavar="ID", help="the task that these seeds belong to")
        parser.add_argument(
            "--close", action="store_true", help="close the task: nobody produces more seeds of --task-id"
        )
        parser.add_argument(
            "--max-lag",
            type=_lag,
            metavar="N|task:N",
            help="wait while more than N messages wait for the group; task:N: more than N of those that this "
            "command has produced for --task-id",
        )
        parser.add_argument("--method", metavar="M", help="the HTTP method (default: GET)")
        parser.add_argument("--not-extract", action="store_true", help="do not follow links")

    def work(self, opts: argparse.Namespace) -> None:
        """Produce. Raises SiteSpiderError."""
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

    def _task_topics(self, opts: argparse.Namespace) -> TaskTopics:
        if opts.close or (opts.max_lag and opts.max_lag.is_of_task):
            check_ends_are_told(self.options)
        return TaskTopics.read(self.options, opts.topic)

    def _produce(self, stream: BinaryIO, log: SeedLog, opts: argparse.Namespace) -> None:
        topics = self._task_topics(opts)
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
                needs_url=not hasattr(self.spider_class, intake.METHOD),
                settled=_nobody if task is None else task.sent,
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
        self._finish(topic, opts, seeding)

    def _finish(self, topic: str, opts: argparse.Namespace, seeding: Seeding) -> None:
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


def _nobody(_place: MessagePlace) -> None:
    """No task is to know where seeds are."""


def _say(line: str) -> None:
    tqdm.write(line, file=sys.stderr)


def _complain(number: int, reason: str) -> None:
    tqdm.write(for_log(f"line {number}: {reason}", one_line=True), file=sys.stderr)
