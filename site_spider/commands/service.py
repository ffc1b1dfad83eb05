"""`scrapy service`: keeps crawler processes running, or checks what they would run with."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

from scrapy import Spider

from site_spider.commands.output import Column, add_format_option, number, print_json, print_table, show
from site_spider.commands.site_command import SiteCommand
from site_spider.errors import ConfigError
from site_spider.seed.topics import Tiers
from site_spider.service import supervisor
from site_spider.service.check import ESSENTIAL, check_crawl, examine, origins
from site_spider.service.settings_checks import check_log_settings

_SETTINGS = (Column("SETTING"), Column("VALUE", shrinks=True), Column("FROM"))
_FINDINGS = (Column("OK"), Column("WHAT"), Column("STATE"))


class Command(SiteCommand):
    """Becomes the supervisor, which needs less memory than a process with Scrapy in it."""

    usage = "[options] [SPIDER]"
    summary = "Keep crawlers of a spider running"
    description = (
        "Runs crawlers of a spider, members of one consumer group, in the foreground. A process that dies is "
        "started again with growing pauses. The first SIGTERM or SIGINT (Ctrl-C) stops all gracefully, the "
        "second kills them. Other options are those of `scrapy crawl`. The exit code is 0 when stopped or "
        "done, 1 if completion cannot be determined, 69 if a server is away at the start, 71 if no process "
        "could take seeds, 78 if a setting cannot be used."
    )
    spider_help = "as the argument"
    max_arguments = 1
    examples = """
        scrapy service shop
        scrapy service shop -n 4 --until-done
        scrapy service shop -n 4 -s DOWNLOAD_DELAY=1 --logfile crawl-%p.log
        scrapy service shop --scale 8      from another terminal; 0: all stop
        scrapy service shop --check        settings, servers and rights
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        processes = partial(number, most=supervisor.MOST_PROCESSES)
        parser.add_argument("-n", metavar="PROCESSES", type=processes, default=1, help="number of processes (1)")
        parser.add_argument(
            "--until-done", action="store_true", help="end when the group has no lag and nothing is in flight"
        )
        said = "have the `scrapy service` that runs with this spider, topic and group keep N processes"
        parser.add_argument("--scale", metavar="N", type=partial(processes, least=0), help=said)
        parser.add_argument(
            "--check",
            action="store_true",
            help="show which settings would be used and where they come from, and whether servers and rights "
            "are there; nothing is started, written or joined",
        )
        add_format_option(parser)
        said = "as of scrapy crawl"
        for flag, what in (("-a", "NAME=VALUE"), ("-o", "FILE"), ("-O", "FILE")):
            dest = f"crawl{flag}"
            parser.add_argument(flag, dest=dest, metavar=what, type="file", action="append", default=[], help=said)

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """As Scrapy asks; the log options are for the crawlers."""
        words = [word for word in args if word != "--"]
        if words and ("--" in args or not words[0].startswith("-")):
            opts.spider = words[0]
        super().process_options(args, opts)
        self._of_crawlers = self.options.copy()
        self.options.set("LOG_FILE", None, priority="cmdline")

    def work(self, opts: argparse.Namespace) -> None:
        words = getattr(opts, "crawl-a")
        arguments = dict(word.split("=", 1) for word in words if "=" in word)  # of others the crawl says it
        if opts.scale is None:
            check_log_settings(self._of_crawlers)
        if opts.check and self.spider_class is not Spider:
            self._show_check(opts.format, arguments)
            return
        if self.spider_class is Spider:
            raise ConfigError("No spider takes seeds, or several do: name one, as `scrapy list` shows them.")
        if opts.scale is None:
            check_crawl(self.options, self.spider_class, arguments)
        sys.stdout.flush()
        become_supervisor([*self._supervision(opts), "--", *_crawl_options(opts)])

    def _show_check(self, form: str, arguments: dict[str, str]) -> None:
        known = [*origins(self.options, self.spider_class)]
        findings = [*examine(self.options, self.spider_class, arguments)]
        code = next((found.code for found in findings if found.code), 0)
        if form == "json":
            settings = {one.name: {"value": one.value, "from": one.source} for one in known}
            checks = [found._asdict() for found in findings]
            spider = self.spider_class.name
            print_json({"spider": spider, "settings": settings, "checks": checks, "exit_code": code})
        else:
            shown = [one for one in known if one.name in ESSENTIAL or not one.is_default]
            print_table(_SETTINGS, [[one.name, _cell(one.value), one.source] for one in shown])
            show(f"{len(known) - len(shown)} other settings have their defaults (--format json shows them)")
            print()
            print_table(_FINDINGS, [["no" if one.code else "yes", one.what, one.says] for one in findings])
        self.exitcode = code

    def _supervision(self, opts: argparse.Namespace) -> Iterator[str]:
        group, topics = str(self.options["SITE_CONSUMER_GROUP"]), ",".join(Tiers.of(self.options).topics)
        yield "--name=scrapy service"
        for word in (sys.executable, "-m", "scrapy"):
            yield f"--program={word}"
        for key in (str(Path.cwd()), self.spider_class.name, group, topics):
            yield f"--key={key}"
        yield f"--spider={self.spider_class.name}"
        yield f"--processes={opts.n}"
        if opts.until_done:
            yield "--until-done"
        if opts.scale is not None:
            yield f"--scale={opts.scale}"


def become_supervisor(arguments: list[str]) -> NoReturn:
    """In this process, without Scrapy."""
    os.execv(sys.executable, [sys.executable, "-I", "-S", supervisor.__file__, *arguments])  # noqa: S606


def _crawl_options(opts: argparse.Namespace) -> Iterator[str]:
    for value in opts.set:
        yield from ("-s", value)
    for flag in ("-a", "-o", "-O"):
        for value in getattr(opts, f"crawl{flag}"):
            yield from (flag, value)
    if opts.logfile:
        yield f"--logfile={opts.logfile}"
    if opts.loglevel:
        yield f"--loglevel={opts.loglevel}"
    if opts.nolog:
        yield "--nolog"


def _cell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
