"""What `bench.sh` can be told."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from pathlib import Path

from tools.race.contestants import CONTESTANTS, PAIR, RACERS
from tools.race.workload import WORKLOADS, Workload

QUICK_PAGES = 400
FLAT_PAGES, FLAT_HOSTS = (10_000, 100_000), (10, 10_000)
MOST_TLS_HOSTS = 250  # all of them are in one certificate, which every server sends
CORES_PAGES, CORES_HOSTS = 6_400, 64  # many hosts, so that both members have a like share of them
DESCRIPTION = """\
Crawls the same pages with this project and with others, and prints what a page costs each of them.

Real Kafka, and Redis for scrapy-redis, are started in a folder of their own. The crawler has one core, the
site and the servers have the others. Runs alternate; the median is shown with least and most. The
environments of scrapy-redis and crawlee are made in .servers/bench when they are first needed.

colly, go (a bare loop) and spider run only when --peers names them. Their programs are built in
.servers/bench too, by Go and Rust, which you install.

Exit code: 0 all were measured, 1 one did not do the work, 2 a wrong option,
69 a server, an environment or a compiler could not be had, 130 interrupted.
"""


class Mode(Enum):
    """What is to be found out."""

    RACE = "what a page costs this project and others"
    CORES = "what a second process on a second core brings"
    FLAT = "whether a page costs the same however many there are"


@dataclass(frozen=True)
class Options:
    """One race; the names are those of the options."""

    mode: Mode
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
    add(
        "--workload",
        nargs="+",
        choices=workloads,
        metavar="NAME",
        help=f"of {', '.join(workloads)} (all; small with --flat, links with --cores)",
    )
    add("--peers", type=_names(peers), metavar="LIST", help=f"of {','.join(peers)} ({','.join(RACERS)})")
    add("--runs", type=_whole(1, 100), metavar="N", help="of each, alternating (5; 1 with --flat)")
    add("--pages", type=_whole(20, 10_000_000), metavar="N", help="of each workload (480 to 4,000)")
    add("--quick", action="store_true", help=f"one run, {QUICK_PAGES} pages: to see that it works")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--cores", action="store_true", help="instead: one process against two on all cores")
    mode.add_argument("--flat", action="store_true", help="instead: CPU and memory as pages and hosts grow")
    counts, hosts = (",".join(map(str, values)) for values in (FLAT_PAGES, FLAT_HOSTS))
    add("--flat-pages", type=_counts, default=FLAT_PAGES, metavar="LIST", help=f"for --flat ({counts})")
    add("--flat-hosts", type=_counts, default=FLAT_HOSTS, metavar="LIST", help=f"for --flat ({hosts})")
    add("--json", type=Path, metavar="FILE", help="write every figure of every run there as well")
    add("--folder", type=Path, required=True, help=argparse.SUPPRESS)
    return parser


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_whole(1, 10_000_000), text.split(",")))


def read_options(arguments: Sequence[str]) -> Options:
    """Exits with 2 when they are wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.flat and "tls" in (given.workload or ()) and max(given.flat_hosts) > MOST_TLS_HOSTS:
        parser.error(f"--workload tls has {MOST_TLS_HOSTS} hosts at most: name fewer with --flat-hosts")
    mode = Mode.FLAT if given.flat else Mode.CORES if given.cores else Mode.RACE
    return Options(
        mode=mode,
        workloads=tuple(_workloads(mode, given)),
        peers=given.peers or {Mode.RACE: RACERS, Mode.CORES: PAIR, Mode.FLAT: ("ours",)}[mode],
        runs=given.runs or (1 if given.quick or mode is Mode.FLAT else 5),
        json=given.json.absolute() if given.json else None,
        folder=given.folder,
    )


def _workloads(mode: Mode, given: argparse.Namespace) -> Iterator[Workload]:
    pages = given.pages or (QUICK_PAGES if given.quick else None)
    known = {workload.name: workload for workload in WORKLOADS}
    if mode is Mode.FLAT:
        for name, total, hosts in product(given.workload or ("small",), given.flat_pages, given.flat_hosts):
            yield replace(known[name], total=total, hosts=min(hosts, total))
    elif mode is Mode.CORES:
        for name in given.workload or ("links",):
            yield replace(known[name], hosts=CORES_HOSTS).scaled(pages or CORES_PAGES)
    else:
        for name in given.workload or known:
            yield known[name] if pages is None else known[name].scaled(pages)
