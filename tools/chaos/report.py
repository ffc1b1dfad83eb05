"""What the logs say: how soon killed crawlers were replaced, what went wrong; and the table of a run.

A killed crawler's replacement is the next process of its run that gets partitions for the first time;
recovery counts from the kill.
"""

from __future__ import annotations

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from site_spider.commands.output import Column, render
from tools.chaos.acts import ACTS
from tools.chaos.check import Check
from tools.chaos.crew import ChaosRun, Death
from tools.chaos.storm import Stage, Storm

_LINE = re.compile(
    r"(?P<time>\d+\.\d{3}) (?P<pid>\d+) \S+ \S+ \[(?P<name>[^]]*)\] (?P<level>[A-Z]+): (?P<text>.*)"
)
_ASSIGNED = re.compile(r"Assigned: (?!nothing$)")
_ENDED = re.compile(
    r"crawl_spider\.sh: process \d+ (?P<how>ended with exit code \d+|was killed by signal (?!KILL)\w+)"
)
_AWAY = ("exit code 69", "exit code 75")  # of `scrapy crawl`: a server is away
_TOLD = re.compile(r"The crawl cannot go on: Kafka |Cannot start: |FATAL .*fenced by other")  # go with those
Row = tuple[str, object]


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

    def recoveries(self, deaths: Iterable[Death]) -> Iterator[float]:
        """How long it took until each was replaced by a process that got partitions, in seconds."""
        first: dict[tuple[str, int], float] = {}
        for run, pid, when in self.assigned:
            first.setdefault((run, pid), when)
        for death in deaths:
            later = [key for key, at in first.items() if key[0] == death.run.name and at > death.when]
            if later:
                yield first.pop(min(later, key=lambda key: first[key])) - death.when


def summary(counts: Mapping[str, int], most: int = 12) -> list[str]:
    """The most frequent, a line each."""
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    lines = [f"{count} x {words[:220]}" for words, count in ordered[:most]]
    return lines + ([f"... and {len(ordered) - most} more"] if len(ordered) > most else [])


def _recovery(stage: Stage, logs: Logs) -> Iterator[Row]:
    if known := list(logs.recoveries(stage.deaths)):
        lacks = f", {len(stage.deaths) - len(known)} without" if len(known) < len(stage.deaths) else ""
        times = f"median {median(known):.2f} s, longest {max(known):.2f} s ({len(known)}{lacks})"
        yield "recovery, from the kill to partitions", times


def _crawl(options: Namespace) -> str:
    """What was crawled with what."""
    if options.embedded:
        return "SQLite"
    kafka = f"Kafka ({options.brokers} brokers)" if options.brokers > 1 else "Kafka"
    more = ["exactly once"] * options.exactly_once + ["two tiers"] * options.topics
    return ", ".join([kafka, options.sink.capitalize(), *more])


def _violence(stage: Stage, storm: Storm) -> Iterator[Row]:
    yield from ((act.says, storm.counts[name]) for name, act in ACTS.items() if storm.counts[name])
    for name in dict.fromkeys(name for name, _, _ in stage.outages):
        lengths = (f"{end - begin:.1f}" for away, begin, end in stage.outages if away == name)
        yield f"{name} away, seconds", ", ".join(lengths)


def table(stage: Stage, storm: Storm, check: Check, logs: Logs, wrong: Sequence[str]) -> list[str]:
    """What a run ends with: what was wrong, what the logs warn of, and the figures."""
    options, counts, pages = stage.options, stage.options.counts, len(check.wanted)
    rows: list[Row] = [
        ("random seed", options.random_seed),
        ("seed log and sink", _crawl(options)),
        ("processes", options.processes),
        ("seeds", stage.feed.count),
        ("pages", pages),
        ("results", check.results),
        *([("cancelled", check.told_cancelled.total())] if counts["cancels"] else []),
        ("lost", len(check.lost)),
        ("dead letters", check.counts["a dead letter"]),
        ("fetched twice", f"{check.twice} ({check.twice / max(1, pages):.1%})"),
        *check.rows,
        ("deaths", len(stage.deaths)),
        *_recovery(stage, logs),
        *(row for row in _violence(stage, storm) if row[0] != ACTS["kills"].says),
        *([(f"rebalances, every {options.rebalance_every:g} s", storm.rebalances),
           ("times that partitions were assigned", len(logs.assigned))] if storm.rebalances else []),
        *([("runs that found a server away at their start", storm.gave_up)] if storm.gave_up else []),
        ("crawlers that ended by themselves",
         ", ".join(f"{count} {how}" for how, count in sorted(logs.ends.items())) or "0"),
        *([("memory of each crawler at minute 5, and in the end, MB",
            f"{storm.early_mb}, {storm.last_mb}")] if storm.early_mb else []),
        ("from the last new page to lag 0, seconds", f"{storm.tail_seconds:.1f}"),
        ("total time, seconds", f"{storm.seconds:.1f}"),
        ("wrong", len(wrong)),
    ]  # fmt: skip
    warnings = [f"  {line}" for line in summary(logs.warnings)]
    told = [f"WRONG  {text}" for text in wrong] + (["warnings in the logs:", *warnings] if warnings else [])
    return [*told, "", *render([Column("chaos"), Column("")], rows)]
