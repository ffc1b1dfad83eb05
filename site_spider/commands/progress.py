"""`scrapy progress`: shows how far a consumer group is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial

from scrapy import Spider

from site_spider import options, runtime
from site_spider.commands.output import add_format_option, print_json, print_table, show
from site_spider.commands.progress_report import Report, document, line, without_owner
from site_spider.commands.progress_task import TaskReport
from site_spider.commands.progress_watch import Lines, LiveLine, Voice, Watch
from site_spider.commands.site_command import SiteCommand
from site_spider.commands.table import Column
from site_spider.contracts.seed_log import Partition, SeedLog
from site_spider.errors import ConfigError
from site_spider.observe.progress import Rate
from site_spider.seed.tiers import Tiers
from site_spider.service import exit_code
from site_spider.service import plugins as parts
from site_spider.service.check import check_crawl
from site_spider.service.log_lines import processes_of
from site_spider.tasks.follower import TaskTopics

_CHECK_SECONDS = 10.0
_MEASURE_SECONDS = 1.0
_TASK_SECONDS = 5.0  # between two looks: the topics are read anew
_COLUMNS = (
    Column("PARTITION"),
    Column("DONE", right=True),
    Column("IN FLIGHT", right=True),
    Column("LAG", right=True),
    Column("END", right=True),
)


class Command(SiteCommand):
    """One look, or a look again and again until all is done."""

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

    def syntax(self) -> str:
        """As Scrapy asks."""
        return "[options]"

    def short_desc(self) -> str:
        """As Scrapy asks."""
        return "Show how far the consumer group is"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As Scrapy asks."""
        super().add_options(parser)
        parser.add_argument("--group", metavar="G", help="default: SITE_CONSUMER_GROUP")
        parser.add_argument("--topic", metavar="T", help="default: all of SITE_SEED_TOPICS")
        parser.add_argument("--task-id", metavar="ID", help="how far one task is, by reading the topics")
        parser.add_argument("--until-done", action="store_true", help="wait until nothing is left")
        add_format_option(parser)

    def work(self, opts: argparse.Namespace) -> None:
        """Show. Raises SiteSpiderError."""
        topics = opts.topic or Tiers.of(self.options).topics
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
                    try:
                        check_crawl(self.options, self.spider_class)
                    except ConfigError as error:
                        self.complain(str(error))
                        self.end_with(exit_code.CONFIG)
                        return
                Watch(look, self.complain, _voice(opts.format), owners=owners).run()
            else:
                log.check(_CHECK_SECONDS)
                self._show_once(look, owners, opts.format)

    def _show_task(self, log: SeedLog, topic: str, group: str, opts: argparse.Namespace) -> None:
        log.check(_CHECK_SECONDS)
        topics = TaskTopics.read(self.options, topic)
        while True:
            report = TaskReport.taken(log, topics, group, opts.task_id)
            if opts.format == "json":
                print_json(report.document())
            else:
                show(report.line())
            if not opts.until_done or report.is_done:
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
        rows = [[_label(which), p.done, p.in_flight, p.lag, p.end] for which, p in report.partitions]
        whole = report.total
        print_table(_COLUMNS, [*rows, ["total", whole.done, whole.in_flight, whole.lag, None]])
        print(line(report))
        if said := without_owner(report):
            self.complain(said)


def _label(which: int | Partition) -> int | str:
    return f"{which.topic}/{which.number}" if isinstance(which, Partition) else which


def _voice(form: str) -> Voice:
    if form == "json":
        return Lines(lambda report: print_json(document(report)))
    if sys.stdout.isatty():
        return LiveLine()
    return Lines(lambda report: print(line(report), flush=True))
