"""What `bench.sh` can be told."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.race.grid import CONTESTANTS
from tests.benchmarks.race.workload import WORKLOADS, Workload

QUICK_PAGES = 400
DESCRIPTION = """\
Crawls the same pages with this project and with others, and prints what a page costs each of them.

Real Kafka, and Redis for scrapy-redis, are started in a folder of their own. The crawler has one core, the
site and the servers have the others. Runs alternate; the median is shown with least and most. The
environments of scrapy-redis and crawlee are made in .servers/bench when they are first needed.

Exit code: 0 all were measured, 1 one did not do the work, 2 a wrong option, 130 interrupted.
"""


@dataclass(frozen=True)
class Options:
    """One race; the names are those of the options."""

    workloads: tuple[Workload, ...]
    peers: tuple[str, ...]
    runs: int
    json: Path | None
    folder: Path


def _whole(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least} to {most}")
        return value

    return number


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def names(text: str) -> tuple[str, ...]:
        found = tuple(name.strip() for name in text.split(",") if name.strip())
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return found

    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench.sh",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    workloads, peers = [one.name for one in WORKLOADS], list(CONTESTANTS)
    add = parser.add_argument
    add("--workload", nargs="+", choices=workloads, metavar="NAME", help=f"of {', '.join(workloads)} (all)")
    add("--peers", type=_names(peers), metavar="LIST", help=f"of {','.join(peers)} (all)")
    add("--runs", type=_whole(1, 100), metavar="N", help="of each, alternating (5)")
    add("--pages", type=_whole(20, 10_000_000), metavar="N", help="of each workload (800 to 6,000)")
    add("--quick", action="store_true", help=f"one run, {QUICK_PAGES} pages: to see that it works")
    add("--json", type=Path, metavar="FILE", help="write every figure of every run there as well")
    add("--folder", type=Path, required=True, help=argparse.SUPPRESS)
    return parser


def read_options(arguments: Sequence[str]) -> Options:
    """Exits with 2 when they are wrong."""
    given = _parser().parse_args(arguments)
    pages = given.pages or (QUICK_PAGES if given.quick else None)
    chosen = [one for one in WORKLOADS if not given.workload or one.name in given.workload]
    return Options(
        workloads=tuple(one if pages is None else one.scaled(pages) for one in chosen),
        peers=given.peers or tuple(CONTESTANTS),
        runs=given.runs or (1 if given.quick else 5),
        json=given.json.absolute() if given.json else None,
        folder=given.folder,
    )
