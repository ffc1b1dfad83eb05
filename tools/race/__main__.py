"""What `bench.sh` can be told, and one race: sets up what is needed, lets all run in turn, prints a table."""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path

from hatch_build import CannotCompile, compiled_folder
from tools import program
from tools.deployment.servers import Server, start_all
from tools.program import EXIT_INTERRUPTED, interrupt_by_signals, say, within
from tools.race import heat, report
from tools.race.contestants import CONTESTANTS, PAIR, RACERS, Compiled, Heat, HeatFailed
from tools.race.heat import Cores, Figures
from tools.race.site import Track
from tools.race.workload import WORKLOADS, Workload

EXIT_FAILED, EXIT_UNAVAILABLE = 1, 69
QUICK_PAGES = 400
CORES_PAGES, CORES_HOSTS = 6_400, 64  # many hosts, so that both members have a like share of them
DESCRIPTION = """\
Crawls the same pages with this project and with others, and prints what a page costs each of them.

Real Kafka is started in a folder of its own. The crawler has one core, the site and the servers have the
others. Runs alternate; the median is shown with least and most.

compiled is this project with modules compiled by hatch_build.py, warc with archives of its pages.
colly, go (a bare loop) and spider run only when --peers names them. Their programs are built in
.servers/bench, by Go and Rust, which you install.

Exit code: 0 all were measured, 1 one did not do the work, 2 a wrong option,
69 a server or a compiler could not be had, 130 interrupted.
"""


def _peers(text: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in found:
        if name not in CONTESTANTS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(CONTESTANTS)}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = program.parser("bench.sh", DESCRIPTION)
    names, add = [one.name for one in WORKLOADS], parser.add_argument
    workloads = f"of {', '.join(names)} (all; links with --cores)"
    add("--workload", nargs="+", choices=names, metavar="NAME", help=workloads)
    add("--peers", type=_peers, metavar="LIST", help=f"of {','.join(CONTESTANTS)} ({','.join(RACERS)})")
    add("--runs", type=within(int, 1, 100), metavar="N", help="of each, alternating (5)")
    add("--pages", type=within(int, 20, 10_000_000), metavar="N", help="of each workload (480 to 4,000)")
    add("--compiled", action="store_true", help="as `compiled` in --peers, beside the others")
    add("--quick", action="store_true", help=f"one run, {QUICK_PAGES} pages: to see that it works")
    add("--cores", action="store_true", help="instead: one process against two on all cores")
    add("--json", type=Path, metavar="FILE", help="write every figure of every run there as well")
    add("--folder", type=Path, required=True, help=argparse.SUPPRESS)  # made by bench.sh
    return parser


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """With `workloads`, `peers` and `runs` as they follow from the others. Exits with 2 if they are wrong."""
    given = _parser().parse_args(arguments)
    given.workloads = tuple(_workloads(given))
    given.peers = given.peers or (PAIR if given.cores else RACERS)
    if given.compiled and "compiled" not in given.peers:
        given.peers = ("compiled", *given.peers)
    given.runs = given.runs or (1 if given.quick else 5)
    return given


def _workloads(given: argparse.Namespace) -> Iterator[Workload]:
    pages = given.pages or (QUICK_PAGES if given.quick else CORES_PAGES if given.cores else None)
    known = {workload.name: workload for workload in WORKLOADS}
    for name in given.workload or (["links"] if given.cores else known):
        workload = replace(known[name], hosts=CORES_HOSTS) if given.cores else known[name]
        yield workload if pages is None else workload.scaled(pages)


class Race:
    """All heats, and what they gave."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self.results: dict[tuple[str, str], list[Figures]] = defaultdict(list)
        self.failures: list[str] = []
        self.cores = Cores.all_for_all() if options.cores else Cores.of_this_machine()
        os.sched_setaffinity(0, self.cores.servers)  # and of what is started
        self._options = options
        self._brokers = ""
        self._servers: tuple[int, ...] = ()
        kinds = {name: CONTESTANTS[name] for name in options.peers}
        build({name: kind for name, kind in kinds.items() if issubclass(kind, Compiled)})
        if "compiled" in kinds:
            say("compiling modules of site_spider: this takes minutes after a change of them")
            compiled_folder()
        if any(kind.needs_kafka for kind in kinds.values()):
            self._start_kafka(options.folder / "servers-kafka", stack)
        self._track = stack.enter_context(Track(options.folder, options.workloads))

    def _start_kafka(self, folder: Path, stack: ExitStack) -> None:
        say("starting kafka")
        kafka = Server("kafka", folder)
        stack.callback(kafka.end)
        start_all([kafka])
        self._brokers = kafka.variables()["SITE_KAFKA_BROKERS"]
        self._servers = (int((folder / "kafka" / "kafka.pid").read_text().split()[0]),)

    def run(self) -> None:
        """In turns, so that what the machine does besides meets all alike."""
        options = self._options
        for number, workload, name in product(range(options.runs), options.workloads, options.peers):
            self._heat(number, workload, name)

    def _heat(self, number: int, workload: Workload, name: str) -> None:
        folder = self._options.folder / f"{number}-{workload.key}-{name}"
        folder.mkdir()
        title = f"run {number + 1} of {self._options.runs}, {workload.key}, {name}"
        turn = Heat(workload, folder, self._track, self._brokers)
        try:
            figures = heat.run(CONTESTANTS[name](turn), self.cores, self._servers)
        except HeatFailed as error:
            self.failures.append(f"{title}: {error}")
            say(f"{title}: FAILED, {error}")
            return
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self.results[workload.key, name].append(figures)
        say(f"{title}: {figures.cpu_us:,.0f} µs of CPU a page, {figures.pages_per_second:,.0f} pages/s")


def build(kinds: dict[str, type[Compiled]]) -> None:
    """The programs of others. None is built while the compiler of another is missing."""
    for name, kind in kinds.items():
        kind.toolchain.check(f"--peers {name}")
    for name, kind in kinds.items():
        say(f"building {name}: this can take minutes the first time")
        kind.build()


def race(options: argparse.Namespace) -> list[str]:
    """The whole of it; what went wrong, a line each."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # site and crawlers: connections to many hosts
    with ExitStack() as stack:
        run = Race(options, stack)
        say(run.cores.note)
        run.run()
    workloads, results, cores = options.workloads, run.results, run.cores
    told = [cores.note, *report.notes(workloads, results, are_apart=cores.are_apart), *run.failures]
    print("\n".join([*report.lines(workloads, results), "", *told]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(report.document(workloads, results, told), indent=1) + "\n")
    return run.failures


def main(arguments: Sequence[str]) -> int:
    options = read_options(arguments)
    interrupt_by_signals()
    try:
        return EXIT_FAILED if race(options) else 0
    except KeyboardInterrupt:
        say("interrupted, all is stopped")
        return EXIT_INTERRUPTED
    except subprocess.CalledProcessError as error:
        say(f"{error}: {error.stderr or ''}")
    except (RuntimeError, CannotCompile) as error:  # a server or the site, or no compiler
        say(str(error))
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    return EXIT_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
