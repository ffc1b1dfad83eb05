"""What `chaos.sh` can be told."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.chaos.combinations import completed, mistake
from tools.chaos.pages import LARGEST_TREE

DESCRIPTION = """\
Crawls seeds from a site on loopback while crawler processes are killed (kill -9), whole runs of
crawl_spider.sh are stopped (SIGTERM) and new ones started, processes freeze for longer than the
session timeout (SIGSTOP), and servers are killed and started again. Further options add what else
fails, and what else the crawl does. In the end every seed is looked for, and every item, end of a
task and request is compared.

Exit code: 0 nothing lost and nothing wrong, 1 otherwise, 2 a wrong option, 130 interrupted.
"""


@dataclass(frozen=True)
class Options:
    """One run; the names are those of the options."""

    seeds: int
    processes: int
    kills: int
    terms: int
    stops: int
    stop_seconds: float
    broker_restarts: int
    elasticsearch_restarts: int
    hbase_restarts: int
    joins: int
    rebalance_every: float
    elasticsearch_blocks: int
    added_partitions: int
    recreated_topics: int
    proxies: int
    brokers: int
    tree: int
    embedded: bool
    sink: str
    exactly_once: bool
    items: bool
    topics: bool
    tasks: int
    pauses: int
    cancels: int
    soak: float  # minutes
    concurrency: int
    random_seed: int
    timeout: float
    keep: bool
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)  # of the crawlers, besides those of the run

    @property
    def closes(self) -> int:
        """How many tasks `scrapy task close` closes as events; a soak closes each when it is complete."""
        return 0 if self.soak else self.tasks // 2

    @property
    def links_come_again(self) -> bool:
        """Whether a page may be met as a link by a process that does not know that it is done.

        After a death the links of a tree are spilled, to processes that may not share the dupefilter.
        """
        return self.tree > 1 and self.settings.get("SITE_DUPEFILTER", "memory") != "redis"


def _whole(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most}")
        return value

    return number


def _real(least: float, most: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least:g} to {most:g}")
        return value

    return number


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chaos.sh",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_crawl(parser.add_argument_group("the crawl"))
    _add_processes(parser.add_argument_group("what happens to processes"))
    _add_servers(parser.add_argument_group("what happens to servers and the network"))
    _add_run(parser.add_argument_group("the run"))
    parser.add_argument("--folder", type=Path, required=True, help=argparse.SUPPRESS)  # made by chaos.sh
    return parser


def _add_crawl(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--seeds", type=_whole(1, 1_000_000), default=2000, metavar="N", help="how many (2000)")
    add("--tree", type=_whole(1, LARGEST_TREE), default=1, metavar="PAGES", help="pages of each seed (1)")
    add("--processes", type=_whole(1, 64), default=2, metavar="P", help="crawler processes (2)")
    add("--concurrency", type=_whole(1, 1000), default=8, metavar="C", help="downloads of a process (8)")
    add("--embedded", action="store_true", help="the SQLite seed log and local sink, no servers")
    add("--sink", choices=("elasticsearch", "kafka", "hbase"), help="where results go (elasticsearch)")
    add("--exactly-once", action="store_true", help="SITE_KAFKA_EXACTLY_ONCE; needs --sink kafka")
    add("--items", action="store_true", help="a spider that yields items; each has to be there once")
    add("--topics", action="store_true", help="two tiers of seeds (SITE_SEED_TOPICS)")
    add("--tasks", type=_whole(0, 500), metavar="N", help="the seeds belong to N tasks, all are closed (0)")
    add("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="for the crawlers")


def _add_processes(group: argparse._ArgumentGroup) -> None:
    count, add = _whole(0, 1000), group.add_argument
    add("--kills", type=count, metavar="N", help="kill -9 of a crawler (5)")
    add("--terms", type=count, metavar="N", help="SIGTERM of a run; later a new one starts (1)")
    add("--stops", type=count, metavar="N", help="SIGSTOP of a crawler, later SIGCONT (0)")
    add("--stop-seconds", type=float, default=15, metavar="S", help="how long it is frozen (15)")
    add("--joins", type=count, metavar="N", help="runs that are added (0)")
    add(
        "--rebalance-every",
        type=_real(1, 3600),
        default=0,
        metavar="S",
        help="join and SIGTERM in turn, all along (never)",
    )
    add("--pauses", type=count, metavar="N", help="a task is paused, and resumed later (0)")
    add("--cancels", type=count, metavar="N", help="a task is cancelled (0)")


def _add_servers(group: argparse._ArgumentGroup) -> None:
    count, add = _whole(0, 1000), group.add_argument
    add("--brokers", type=int, choices=(1, 3), default=1, help="of Kafka; 3: a kill hits one or two (1)")
    add("--broker-restarts", type=count, metavar="N", help="kill -9 and start of Kafka (1)")
    add("--elasticsearch-restarts", type=count, metavar="N", help="likewise (1, with this sink)")
    add("--hbase-restarts", type=count, metavar="N", help="likewise (1, with this sink)")
    add("--elasticsearch-blocks", type=count, metavar="N", help="its indices take no writes for seconds (0)")
    add("--added-partitions", type=_whole(0, 20), metavar="N", help="one partition more of the topic (0)")
    add(
        "--recreated-topics",
        type=_whole(0, 20),
        metavar="N",
        help="a seed topic is deleted, created again (0)",
    )
    add(
        "--proxies",
        type=count,
        metavar="N",
        help="the way to a server delays, throttles, resets, refuses or swallows for seconds (0)",
    )


def _add_run(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--soak",
        type=_real(0.5, 1440),
        default=0,
        metavar="MINUTES",
        help="produce seeds for so long; all that fits happens by chance, unless an option says how often",
    )
    add("--random-seed", type=int, metavar="R", help="repeats the plan of a run")
    add("--timeout", type=float, default=600, metavar="S", help="when a crawl counts as stuck (600)")
    add("--keep", action="store_true", help="keep logs and data, and say where (always when it fails)")


def read_options(arguments: Sequence[str]) -> Options:
    """The options of a command line; ends the process with 2 when they are wrong."""
    parser = _parser()
    values = vars(parser.parse_args(arguments))
    values["settings"] = dict(values.pop("set"))
    if values["random_seed"] is None:
        values["random_seed"] = random.randrange(1_000_000)
    if why := mistake(values):
        parser.exit(2, f"chaos.sh: {why}\n")
    return Options(**completed(values))
