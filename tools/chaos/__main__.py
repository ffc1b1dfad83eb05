"""One run: sets the scene, lets the storm pass, compares, and leaves nothing behind but a table."""

from __future__ import annotations

import re
import shutil
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from statistics import median

from site_spider.commands.output import Column, render
from tools.chaos.acts import ACTS
from tools.chaos.check import Check, checked
from tools.chaos.plan import plan, read_options
from tools.chaos.storm import ChaosRun, Stage, Storm
from tools.program import EXIT_INTERRUPTED, interrupt_by_signals, say

Row = tuple[str, object]
_LINE = re.compile(r"(?P<time>\d+\.\d{3}) (?P<pid>\d+) \S+ \S+ \[(?P<name>[^]]*)\] (?P<level>[A-Z]+): (?P<text>.*)")
_ASSIGNED = re.compile(r"Assigned: (?!nothing$)")
_ENDED = re.compile(r"crawl_spider\.sh: process \d+ (?P<how>ended with exit code \d+|was killed by signal (?!KILL)\w+)")
_AWAY = ("exit code 69", "exit code 75")  # of `scrapy crawl`: a server is away
_TOLD = re.compile(r"The crawl cannot go on: Kafka |Cannot start: |FATAL .*fenced by other")  # go with those
_MOST_LINES = 12


class Logs:
    """What the logs of all runs hold that should not be there, and what only stands out."""

    def __init__(self, runs: Iterable[ChaosRun]) -> None:
        self.wrong: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()  # how crawlers ended that nobody had killed
        self.assigned: list[tuple[str, int, float]] = []  # to whom partitions were given, and when
        for run in runs:
            with run.log.open(errors="replace") as lines:
                for line in lines:
                    self._note(line.rstrip("\n"), run.name)
        for how, count in self.ends.items():
            if not how.endswith(_AWAY):
                self.wrong[f"a crawler {how}, which nobody had asked for"] += count

    def _note(self, line: str, run: str) -> None:
        match = _LINE.match(line)
        if match is None:
            if ended := _ENDED.match(line):
                self.ends[ended["how"]] += 1
            elif line.startswith("Traceback"):
                self.wrong[f"a traceback in {run}.log"] += 1
            return
        if _ASSIGNED.match(match["text"]):
            self.assigned.append((run, int(match["pid"]), float(match["time"])))
        words = f"{match['level']}: {re.sub(r'[0-9a-f]{10,}|[0-9]+([.][0-9]+)?', '#', match['text'])}"
        if match["level"] == "WARNING":
            self.warnings[words] += 1
        elif match["level"] in {"ERROR", "CRITICAL"}:
            (self.warnings if _TOLD.match(match["text"]) else self.wrong)[words] += 1

    def recoveries(self, deaths: Iterable[tuple[str, float]]) -> Iterator[float]:
        """Seconds until the next process of its run got partitions for the first time."""
        first: dict[tuple[str, int], float] = {}
        for run, pid, when in self.assigned:
            first.setdefault((run, pid), when)
        for run, when in deaths:
            if later := [key for key, at in first.items() if key[0] == run and at > when]:
                yield first.pop(min(later, key=lambda key: first[key])) - when


def _summary(counts: Mapping[str, int]) -> list[str]:
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    lines = [f"{count} x {words[:220]}" for words, count in ordered[:_MOST_LINES]]
    return lines + [f"... and {len(ordered) - _MOST_LINES} more"] * (len(ordered) > _MOST_LINES)


def _crawl(options: Namespace) -> str:
    if options.embedded:
        return "SQLite"
    kafka = f"Kafka ({options.brokers} brokers)" if options.brokers > 1 else "Kafka"
    more = ["exactly once"] * options.exactly_once + ["two tiers"] * options.topics
    return ", ".join([kafka, options.sink.capitalize(), *more])


def _violence(stage: Stage, storm: Storm, logs: Logs) -> Iterator[Row]:
    yield "deaths", len(stage.deaths)
    if known := list(logs.recoveries(stage.deaths)):
        lacks = f", {len(stage.deaths) - len(known)} without" if len(known) < len(stage.deaths) else ""
        times = f"median {median(known):.2f} s, longest {max(known):.2f} s ({len(known)}{lacks})"
        yield "recovery, from the kill to partitions", times
    for name, act in ACTS.items():
        if storm.counts[name] and name != "kills":
            yield act.says, storm.counts[name]
    for name in dict.fromkeys(name for name, _ in stage.outages):
        lengths = (f"{seconds:.1f}" for away, seconds in stage.outages if away == name)
        yield f"{name} away, seconds", ", ".join(lengths)
    if storm.rebalances:
        yield f"rebalances, every {stage.options.rebalance_every:g} s", storm.rebalances
        yield "times that partitions were assigned", len(logs.assigned)
    if storm.gave_up:
        yield "runs that found a server away at their start", storm.gave_up
    ends = ", ".join(f"{count} {how}" for how, count in sorted(logs.ends.items()))
    yield "crawlers that ended by themselves", ends or "0"
    if storm.early_mb:
        yield "memory of each crawler at minute 5, and in the end, MB", f"{storm.early_mb}, {storm.last_mb}"


def _table(stage: Stage, storm: Storm, check: Check, logs: Logs, wrong: Sequence[str]) -> list[str]:
    """What a run ends with: what was wrong, what the logs warn of, and the figures."""
    options, pages = stage.options, len(check.wanted)
    rows: list[Row] = [
        ("random seed", options.random_seed),
        ("seed log and sink", _crawl(options)),
        ("processes", options.processes),
        ("seeds", stage.feed.count),
        ("pages", pages),
        ("results", check.results),
        *([("cancelled", check.told_cancelled.total())] if options.counts["cancels"] else []),
        ("lost", len(check.lost)),
        ("dead letters", check.counts["a dead letter"]),
        ("fetched twice", f"{check.twice} ({check.twice / max(1, pages):.1%})"),
        *check.rows,
        *_violence(stage, storm, logs),
        ("from the last new page to lag 0, seconds", f"{storm.tail_seconds:.1f}"),
        ("total time, seconds", f"{storm.seconds:.1f}"),
        ("wrong", len(wrong)),
    ]
    warnings = ["warnings in the logs:", *(f"  {line}" for line in _summary(logs.warnings))]
    told = [f"WRONG  {text}" for text in wrong] + (warnings if logs.warnings else [])
    return [*told, "", *render([Column("chaos"), Column("")], rows)]


def rage(options: Namespace) -> list[str]:
    """The whole run; what is wrong, a line each."""
    say(f"random seed {options.random_seed}, folder {options.folder}")
    events = plan(options)
    for event in events:
        say(f"  at {event}")
    say("starting the site" if options.embedded else "starting the servers and the site")
    with ExitStack() as stack:
        stage = Stage(options, stack, say)
        say(f"{stage.feed.count} seeds are produced{' and more all along' if options.soak else ''}")
        storm = Storm(stage, events)
        storm.run()
        say("stopping the crawlers")
        wrong = storm.wrong + stage.crew.stop()
        say("comparing")
        stage.site.stop()
        check = checked(stage, storm)
        wrong += stage.commands.wrong + check.wrong
        if storm.left:
            wrong.append(f"{len(storm.left)} events never came: the crawl was over, or stood still")
        if (lag := stage.lag()) != 0:
            wrong.append(f"the lag is {lag} in the end")
        logs = Logs(stage.crew.runs)
        wrong += _summary(logs.wrong)
        print("\n".join(_table(stage, storm, check, logs, wrong)), flush=True)
        return wrong


def main(arguments: Sequence[str]) -> int:
    options = read_options(arguments)
    interrupt_by_signals()
    is_wrong, interrupted = True, False
    try:
        is_wrong = bool(rage(options))
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted, all is stopped")
    finally:
        if is_wrong and not interrupted:
            print(f"logs, record and data are in {options.folder}", flush=True)
        else:
            shutil.rmtree(options.folder)
    return EXIT_INTERRUPTED if interrupted else int(is_wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
