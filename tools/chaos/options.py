"""What `chaos.sh` can be told."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.chaos.pages import LARGEST_TREE

DESCRIPTION = """\
Crawls seeds from a site on loopback while crawler processes are killed (kill -9), whole runs of
crawl_spider.sh are stopped (SIGTERM) and new ones started, processes freeze for longer than the
session timeout (SIGSTOP), and Kafka and Elasticsearch are killed and started again. With
--rebalance-every the group's members change all along besides. In the end every seed is looked for.

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
    joins: int
    rebalance_every: float
    tree: int
    embedded: bool
    concurrency: int
    random_seed: int
    timeout: float
    keep: bool
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)  # of the crawlers, besides those of the run

    @property
    def pages(self) -> int:
        """How many pages the whole crawl has."""
        return self.seeds * self.tree


def _whole(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most}")
        return value

    return number


def _seconds(text: str) -> float:
    value = float(text)
    if not 1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to 3600")
    return value


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
    count = _whole(0, 1000)
    add = parser.add_argument
    add("--seeds", type=_whole(1, 1_000_000), default=2000, metavar="N", help="how many (2000)")
    add("--processes", type=_whole(1, 64), default=2, metavar="P", help="crawler processes (2)")
    add("--kills", type=count, default=5, metavar="N", help="kill -9 of a crawler (5)")
    add("--terms", type=count, default=1, metavar="N", help="SIGTERM of a run; later a new one starts (1)")
    add("--stops", type=count, default=0, metavar="N", help="SIGSTOP of a crawler, later SIGCONT (0)")
    add("--stop-seconds", type=float, default=15, metavar="S", help="how long it is frozen (15)")
    add("--broker-restarts", type=count, default=1, metavar="N", help="kill -9 and start of Kafka (1)")
    add("--elasticsearch-restarts", type=count, default=1, metavar="N", help="likewise (1)")
    add("--joins", type=count, default=0, metavar="N", help="runs that are added (0)")
    add(
        "--rebalance-every",
        type=_seconds,
        default=0,
        metavar="S",
        help="join and SIGTERM in turn, all along (never)",
    )
    add("--tree", type=_whole(1, LARGEST_TREE), default=1, metavar="PAGES", help="pages of each seed (1)")
    add("--embedded", action="store_true", help="the SQLite seed log and local sink, no servers")
    add("--concurrency", type=_whole(1, 1000), default=8, metavar="C", help="downloads of a process (8)")
    add("--random-seed", type=int, default=None, metavar="R", help="repeats the plan of a run")
    add("--timeout", type=float, default=600, metavar="S", help="when a crawl counts as stuck (600)")
    add("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="for the crawlers")
    add("--keep", action="store_true", help="keep logs and data, and say where (always when it fails)")
    add("--folder", type=Path, required=True, help=argparse.SUPPRESS)  # an empty one, made by chaos.sh
    return parser


def read_options(arguments: Sequence[str]) -> Options:
    """The options of a command line; ends the process with 2 when they are wrong."""
    values = vars(_parser().parse_args(arguments))
    values["settings"] = dict(values.pop("set"))
    if values["random_seed"] is None:
        values["random_seed"] = random.randrange(1_000_000)
    if values["embedded"]:  # there are no servers to kill
        values |= {"broker_restarts": 0, "elasticsearch_restarts": 0}
    return Options(**values)
