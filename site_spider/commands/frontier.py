"""`scrapy frontier`: shows what waits in the running crawls of this machine, and why."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from typing import Any

from site_spider.commands.output import Column, add_format_option, print_json, print_table, show
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.errors import SiteSpiderError
from site_spider.observe.frontier_socket import NOBODY, OddSnapshot, alive, ask, folders
from site_spider.observe.snapshot import MOST_HOSTS

_DEFAULT_HOSTS = 20
_SECONDS = 10.0  # that a process may take to answer
_HOSTS = (
    Column("HOST", shrinks=True),
    Column("WAITING", right=True),
    Column("OUT", right=True),
    Column("REASON"),
    Column("NEXT IN S", right=True),
)


class Command(SiteCommand):
    """Asks each running process on its socket; changes nothing."""

    summary = "Show what waits in running crawls, and why"
    description = (
        "Shows what waits in each crawl that runs on this machine as this user: queue lengths by level, "
        "hosts with the reason why they wait (busy, delay, back-off, ...) and until when, requests out, "
        "seeds in flight, paused partitions, results that wait for a sink. It changes nothing. The exit "
        "code is 1 if no crawl runs."
    )
    examples = """
        scrapy frontier
        scrapy frontier --hosts 100
        scrapy frontier --process 4711 --format json
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        said = f"show N hosts with the longest queues (default: {_DEFAULT_HOSTS}, at most {MOST_HOSTS})"
        parser.add_argument("--hosts", metavar="N", type=int, default=_DEFAULT_HOSTS, help=said)
        parser.add_argument("--process", metavar="PID", type=int, help="only this process (default: all)")
        add_format_option(parser)

    def work(self, opts: argparse.Namespace) -> None:
        if not 0 <= opts.hosts <= MOST_HOSTS:
            self.refuse(f"--hosts is {opts.hosts}, but must be 0 to {MOST_HOSTS}")
        answers = 0
        for path, pid in alive().items():
            if opts.process not in (None, pid):
                continue
            try:
                document = asyncio.run(ask(path, b"%d" % opts.hosts, _SECONDS))
            except NOBODY:
                continue
            except (OSError, OddSnapshot) as error:
                said = str(error) or "it may be busy; try again"  # a timeout has no words
                self.complain(f"process {pid} does not answer: {said}")
                self.exitcode = EXIT_FAILED
                continue
            if opts.format == "json":
                print_json(document)
            else:
                if answers:
                    print()
                _print(document)
            answers += 1
        if not answers and not self.exitcode:
            raise _nobody(opts.process)


def _nobody(pid: int | None) -> SiteSpiderError:
    where = " or ".join(str(folder) for folder in folders())
    what = "no crawl runs" if pid is None else f"no crawl runs as process {pid}"
    return SiteSpiderError(
        f"{what} that could be asked: there is no socket in {where}. Run this on the same machine, as "
        "the same user and with the same XDG_RUNTIME_DIR as the crawl, which needs "
        "SITE_FRONTIER_SOCKET=true."
    )


def _print(found: Mapping[str, Any]) -> None:
    show(f"Process {found['pid']}: {found['spider']} of group {found['group']} on topic {found['topic']}")
    show(f"  queues           {_pairs(found['queues'])}")
    show(f"  waiting          {found['waiting']}, {found['waiting_for_their_moment']} not due yet")
    show(f"  hosts            {_pairs(found['hosts'])}")
    show(f"  requests         {found['requests_out']} out, {found['requests_in_progress']} in progress")
    show(f"  seeds in flight  {_pairs(found['seeds_in_flight']) or 'none'}")
    for partition, why in found["paused"].items():
        show(f"  paused           {partition}: {why}")
    for sink in found["sinks"]:
        state = "" if sink["available"] else ", AWAY"
        backlog = f"{sink['backlog']} wait, {sink['backlog_bytes']} B{state}"
        show(f"  sink             {sink['name']}: {backlog}")
    if found["proxies"] is not None:
        show(f"  proxies          {_pairs(found['proxies'])}")
    hosts = found["largest_hosts"]
    if hosts:
        names = ("host", "waiting", "out", "reason", "next_in_seconds")
        print_table(_HOSTS, [[host[name] for name in names] for host in hosts])


def _pairs(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
