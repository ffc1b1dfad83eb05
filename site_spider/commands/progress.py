"""`scrapy progress`: shows how far a consumer group is."""

from __future__ import annotations

import argparse
import logging
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

from scrapy import Spider

from site_spider import options, runtime
from site_spider.commands.output import (
    Column,
    add_format_option,
    add_group_options,
    print_json,
    print_table,
    show,
    takes_no_more,
)
from site_spider.commands.site_command import SiteCommand
from site_spider.contracts.seed_log import Partition, SeedLog
from site_spider.errors import LogUnavailable
from site_spider.observe.progress import Progress, Rate, in_parked_topic, in_seed_topic, of_partition, of_topics, total
from site_spider.outage import Outage, wait_until_there
from site_spider.seed.topics import CrawlTopics, Tiers
from site_spider.service import config as parts
from site_spider.service.log_lines import processes_of
from site_spider.tasks.orders import TaskDesk, not_known
from site_spider.text import cut

logger = logging.getLogger(__name__)

# --- progress report: one report of `scrapy progress`, as a line and as a document -----------------------


@dataclass(frozen=True, slots=True)
class Report:
    """How far a group is, partition by partition and in sum."""

    topic: str  # or several, with commas between
    group: str
    address: str
    partitions: Mapping[Partition, Progress]
    rate: float | None
    seconds_left: float | None
    unowned: frozenset[Partition] | None = None  # that no process has; None: not asked, or not known

    @classmethod
    def taken(cls, log: SeedLog, topics: tuple[str, ...], group: str, rate: Rate) -> Report:
        """Ask the log; `rate` takes part in the measurement. Raises LogUnavailable, TopicMissing."""
        parts = {part.partition: of_partition(part) for part in of_topics(log, topics, group)}
        whole = total(parts.values())
        rate.add(runtime.monotonic(), whole.passed)
        left = rate.seconds_left(whole.lag)
        return cls(",".join(topics), group, log.address, parts, rate.per_second, left)

    @property
    def total(self) -> Progress:
        return total(self.partitions.values())

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(part.end for part in self.partitions.values())


def line(report: Report) -> str:
    """All of it in one line."""
    whole = report.total
    parts = [f"done {whole.done}", f"in flight {whole.in_flight}", f"lag {whole.lag}"]
    if whole.deleted_unread:
        parts.append(f"deleted unread {whole.deleted_unread}")
    parts.append("rate -" if report.rate is None else f"rate {report.rate:.1f}/s")
    left = report.seconds_left
    parts.append("time left -" if left is None else f"time left {timedelta(seconds=round(left))}")
    return ", ".join(parts)


def without_owner(report: Report) -> str:
    """A sentence about partitions that no process has; empty when nothing waits for one."""
    if not report.unowned or report.total.is_done:
        return ""
    if len(report.unowned) == len(report.partitions):
        return f"No process of group {report.group} has a partition: nothing is crawled until one is started."
    names = ", ".join(map(str, sorted(report.unowned)))
    return (
        f"No process of group {report.group} has these partitions, so their seeds wait: {names}. The group "
        "should assign them within a minute; if not, start one more process."
    )


def document(report: Report) -> dict[str, Any]:
    """All of it for programs; what is not known is null."""
    rate, left, unowned = report.rate, report.seconds_left, report.unowned
    parts = [{**_named(each), **found._asdict()} for each, found in report.partitions.items()]
    return {
        "topic": report.topic,
        "group": report.group,
        **report.total._asdict(),
        "rate": None if rate is None else round(rate, 3),
        "seconds_left": None if left is None else round(left, 1),
        "partitions_without_owner": None if unowned is None else [_named(each) for each in sorted(unowned)],
        "partitions": parts,
    }


def _named(partition: Partition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.number}


def task_report(desk: TaskDesk, group: str, task_id: str) -> dict[str, Any]:
    """How far one task is. What waits is counted in the topics; the rest is what processes tell of it.

    `waiting`: in the seed topics and not complete, what is in flight included. Raises LogUnavailable.
    """
    log, topics, overview = desk.log, desk.topics, desk.overview()
    facts = overview.of(task_id)
    return {
        "task_id": task_id,
        "state": facts.state if overview.knows(task_id) else _NOT_DECLARED,
        "reason": facts.reason,
        "waiting": sum(1 for topic in topics.tiers for _ in in_seed_topic(log, topic, group, task_id)),
        "parked": sum(1 for _ in in_parked_topic(log, topics, desk.board, task_id)),
        **facts.numbers(),
        "pages_begun": facts.pages_begun,
    }


def task_line(report: Mapping[str, Any]) -> str:
    """All of it in one line."""
    seeds = "".join(f", {count} {outcome}" for outcome, count in sorted(report["seeds"].items()))
    reason = f" ({report['reason']})" if report["reason"] else ""
    said = f"task {report['task_id']} {report['state']}{reason}: waiting {report['waiting']}"
    return f"{said}, parked {report['parked']}, pages {report['pages']}{seeds}"


# --- progress watch: waits until a consumer group has nothing left to do ---------------------------------
# Theory: the ends of the partitions are asked for before what is committed, so a discovered link that went
# back into the log meanwhile can be missing from the ends while its parent is committed already. Two looks
# in a row without lag and with the same ends are needed: at the second look at the ends nothing new was
# there, and everything before them had been committed by then.

_LOOK_SECONDS = 0.5
_OWNER_SECONDS = 15.0  # between two questions which partitions nobody has
_TELL_SECONDS = 30  # that ends of tasks are waited for when all else is done
_SAY_SECONDS = 5.0  # between two lines when they are not drawn over each other


class Lines:
    """Says what has changed, every few seconds at most, and how it ended."""

    def __init__(self, say: Callable[[Report], None], gap_seconds: float = _SAY_SECONDS) -> None:
        self._say = say
        self._gap_seconds = gap_seconds
        self._said: Report | None = None
        self._say_at = 0.0

    def show(self, report: Report, *, is_last: bool = False) -> None:
        changed = self._said is None or self._said.total != report.total
        if is_last or (changed and runtime.monotonic() >= self._say_at):
            self._said = report
            self._say(report)
            self._say_at = runtime.monotonic() + self._gap_seconds

    def interrupt(self) -> None:
        """Something else will be printed."""


class LiveLine(Lines):
    """One line of a terminal, drawn over at every look, because the rate changes."""

    def __init__(self) -> None:
        super().__init__(self.show)

    def show(self, report: Report, *, is_last: bool = False) -> None:
        text = cut(line(report), shutil.get_terminal_size().columns - 1)
        print(f"\r\x1b[K{text}", end="\n" if is_last else "", flush=True)

    def interrupt(self) -> None:
        print("\r\x1b[K", end="", flush=True)


@dataclass(slots=True)
class Watch:
    """Looks again and again; `complain` hears once when the log does not answer, and when it does again."""

    look: Callable[[Rate], Report]
    complain: Callable[[str], None]
    voice: Lines
    owners: Callable[[], frozenset[Partition] | None]  # partitions that no process has
    pause_seconds: float = _LOOK_SECONDS
    untold: Callable[[], Sequence[str]] = tuple  # tasks whose end a process of this crawl is about to tell
    _give_up_at: float = math.inf
    _ask_owners_at: float = field(default_factory=lambda: runtime.monotonic() + _OWNER_SECONDS)
    _without_owner: str = ""  # as it was said last

    def run(self) -> None:
        """Return when nothing is left. Raises TopicMissing."""
        before: Report | None = None
        for report in self._reports():
            if report.total.is_done and before is not None and before.ends == report.ends and not self._is_telling():
                self.voice.show(report, is_last=True)
                return
            self.voice.show(report)
            self._look_for_owners(report)
            before = report if report.total.is_done else None
            if before is None:
                self._give_up_at = math.inf
                runtime.sleep(self.pause_seconds)

    def _is_telling(self) -> bool:
        """Whether an end is to come: a process tells it when it has read what was said before its start."""
        try:
            untold = self.untold()
        except LogUnavailable as error:
            untold = [f"tasks (not known: {error})"]
        now = runtime.monotonic()
        self._give_up_at = min(self._give_up_at, now + _TELL_SECONDS) if untold else math.inf
        if now >= self._give_up_at:
            self._say(f"Not told within {_TELL_SECONDS} s is the end of {cut(', '.join(untold), 200)}")
        elif untold:
            runtime.sleep(self.pause_seconds)
        return now < self._give_up_at < math.inf

    def _look_for_owners(self, report: Report) -> None:
        """A rebalance takes a moment: what is said has been so for two looks."""
        if runtime.monotonic() < self._ask_owners_at:
            return
        self._ask_owners_at = runtime.monotonic() + _OWNER_SECONDS
        try:
            said = without_owner(replace(report, unowned=self.owners()))
        except LogUnavailable:
            return  # the next look says so
        if said and said == self._without_owner:
            self._say(said)
        self._without_owner = said

    def _reports(self) -> Iterator[Report]:
        """One after another; waits while the log does not answer."""
        rate, is_away = Rate(), False
        while True:
            try:
                report = self.look(rate)
            except LogUnavailable as error:
                if not is_away:
                    self._say(f"waiting: {error}")
                is_away = True
                runtime.sleep(self.pause_seconds)
                continue
            if is_away:
                self._say(f"{report.address} answers again")
            is_away = False
            yield report

    def _say(self, message: str) -> None:
        self.voice.interrupt()
        self.complain(message)


_MEASURE_SECONDS = 1.0
_TASK_SECONDS = 5.0  # between two looks: the topics are read anew
_NOT_DECLARED = "not declared"
_COLUMNS = (Column("PARTITION"), *(Column(title, right=True) for title in ("DONE", "IN FLIGHT", "LAG", "END")))


class Command(SiteCommand):
    """One look, or a look again and again until all is done."""

    summary = "Show how far the consumer group is"
    description = (
        "Shows how far a consumer group is: messages done, in flight (a part of the lag), lag, rate and time "
        "left. With --until-done it waits until the group has no lag and nothing is in flight, and then ends "
        "with exit code 0. The exit code is 1 if the topic does not exist."
    )
    examples = """
        scrapy progress
        scrapy progress --until-done
        scrapy progress --group site_spider --topic seeds --format json
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        add_group_options(parser)
        parser.add_argument("--task-id", metavar="ID", help="how far one task is, by reading the topics")
        parser.add_argument("--until-done", action="store_true", help="wait until nothing is left")
        add_format_option(parser)

    def work(self, opts: argparse.Namespace) -> None:
        topics = (opts.topic,) if opts.topic else Tiers.of(self.options).topics
        group = opts.group or options.text(self.options, "SITE_CONSUMER_GROUP", required=True)
        with closing(parts.seed_log(self.options)) as log:
            if opts.task_id is not None:
                self._show_task(log, opts.topic or Tiers.of(self.options).main, group, opts)
                return
            look = partial(Report.taken, log, topics, group)
            owners = partial(log.unowned, topics, group)
            if opts.until_done:
                # of crawl_spider.sh: nothing is done by a crawl that cannot start
                if processes_of() and self.spider_class is not Spider:
                    from site_spider.service.check import check_crawl  # noqa: PLC0415 - it imports the whole crawl

                    check_crawl(self.options, self.spider_class)
                untold = partial(self._untold, log) if processes_of() else tuple
                self._wait(Watch(look, self.complain, _voice(opts.format), owners, untold=untold))
            else:
                log.check(parts.CHECK_SECONDS)
                self._show_once(look, owners, opts.format)

    def _wait(self, watch: Watch) -> None:
        """The watcher of a crawl goes on where nobody takes what it says: on a full disk, say."""
        try:
            watch.run()
        except OSError:
            if not processes_of():
                raise
            for stream in (sys.stdout, sys.stderr):
                takes_no_more(stream)
            watch.run()

    def _untold(self, log: SeedLog) -> list[str]:
        """Tasks that end when a process looks at them. Raises LogUnavailable."""
        if options.boolean(self.options, parts.EXACTLY_ONCE):  # nobody tells it
            return []
        return list(TaskDesk(log, CrawlTopics.of(self.options)).overview().untold())

    def _show_task(self, log: SeedLog, topic: str, group: str, opts: argparse.Namespace) -> None:
        log.check(parts.CHECK_SECONDS)
        topics = CrawlTopics.beside(self.options, topic)
        away = Outage(logger, "Waiting", f"{log.address} answers again")
        for look in count():
            wait_seconds = math.inf if look else 0
            report = wait_until_there(
                lambda: task_report(TaskDesk(log, topics), group, opts.task_id), LogUnavailable, wait_seconds, away
            )
            has_any = report["waiting"] or report["parked"]
            if not look and not has_any and report["state"] == _NOT_DECLARED:
                raise not_known(opts.task_id)
            if opts.format == "json":
                print_json(report)
            else:
                show(task_line(report))
            if not (opts.until_done and has_any):
                return
            runtime.sleep(_TASK_SECONDS)

    def _show_once(
        self, look: Callable[[Rate], Report], owners: Callable[[], frozenset[Partition] | None], form: str
    ) -> None:
        rate = Rate()
        report = look(rate)
        if not report.total.is_done:  # a rate takes two looks
            runtime.sleep(_MEASURE_SECONDS)
            report = look(rate)
        report = replace(report, unowned=owners())
        if form == "json":
            print_json(document(report))
            return
        show(f"Group {report.group} on topic {report.topic} at {report.address}")
        rows = [[each, p.done, p.in_flight, p.lag, p.end] for each, p in report.partitions.items()]
        whole = report.total
        print_table(_COLUMNS, [*rows, ["total", whole.done, whole.in_flight, whole.lag, None]])
        print(line(report))
        if said := without_owner(report):
            self.complain(said)


def _voice(form: str) -> Lines:
    if form == "json":
        return Lines(lambda report: print_json(document(report)))
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return LiveLine()
    return Lines(lambda report: print(line(report), flush=True))
