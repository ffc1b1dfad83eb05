"""What the logs say: how soon killed crawlers were replaced, and what went wrong.

A killed crawler's replacement is the next process that its run started. It has recovered when it says
that partitions were assigned to it; recovery counts from the kill, and from the start of the new process.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.chaos.crew import Run
from tools.chaos.happened import Death
from tools.chaos.processes import Process

_LINE = re.compile(
    r"(?P<time>\d+\.\d{3}) (?P<pid>\d+) \S+ \S+ \[(?P<name>[^]]*)\] (?P<level>[A-Z]+): (?P<text>.*)"
)
_ASSIGNED = re.compile(r"Assigned: (?!nothing$)")
_ENDED = re.compile(
    r"crawl_spider\.sh: process \d+ (?P<how>ended with exit code \d+|was killed by signal (?!KILL)\w+)"
)
_AWAY = ("exit code 69", "exit code 75")  # of `scrapy crawl`: a server is away
_TOLD = re.compile(r"The crawl cannot go on: Kafka |Cannot start: |FATAL .*fenced by other")  # go with those


@dataclass(frozen=True)
class Recovery:
    """One death; times are None when no replacement got partitions."""

    death: Death
    from_kill: float | None
    from_start: float | None
    in_outage: bool


def recoveries(deaths: Sequence[Death], outages: Iterable[tuple[float, float]]) -> list[Recovery]:
    """One for each death, in their order."""
    away = list(outages)
    assigned = {
        run.name: _assignments(run.log) for run in {death.run.name: death.run for death in deaths}.values()
    }
    taken: set[Process] = set()
    result = []
    for death in deaths:
        new = _replacement(death, taken)
        taken |= {new} if new else set()
        when = assigned[death.run.name].get(new.pid) if new else None
        until = when or death.when
        in_outage = any(begin < until and end > death.when for begin, end in away)
        from_start = when - new.started if new and when else None
        result.append(Recovery(death, when - death.when if when else None, from_start, in_outage))
    return result


def _replacement(death: Death, taken: set[Process]) -> Process | None:
    after = [one for one in death.run.crawlers if one.started >= death.when and one not in taken]
    return min(after, key=lambda one: one.tick, default=None)


def _assignments(log: Path) -> dict[int, float]:
    """By process: when it first got partitions."""
    found: dict[int, float] = {}
    for when, _, pid in assignments(log):
        found.setdefault(pid, when)
    return found


def assignments(log: Path) -> Iterator[tuple[float, str, int]]:
    """When each partition was assigned, as topic/number, and to which process."""
    for line in _lines(log):
        match = _LINE.match(line)
        if match and _ASSIGNED.match(match["text"]):
            for place in re.findall(r"[\w.-]+/\d+", match["text"]):
                yield float(match["time"]), place, int(match["pid"])


def _lines(log: Path) -> Iterator[str]:
    with log.open(errors="replace") as file:
        yield from file


@dataclass
class Complaints:
    """What the logs of all runs hold that should not be there, and what only stands out."""

    wrong: Counter[str]
    warnings: Counter[str]
    ends: Counter[str]  # how crawlers ended that nobody had killed
    assigned: int = 0  # how often a process was given partitions


def complaints(runs: Iterable[Run]) -> Complaints:
    """Read all logs."""
    found = Complaints(Counter(), Counter(), Counter())
    for run in runs:
        for line in _lines(run.log):
            _note(line.rstrip("\n"), run.name, found)
    for how, count in found.ends.items():
        if not how.endswith(_AWAY):
            found.wrong[f"a crawler {how}, which nobody had asked for"] += count
    return found


def _note(line: str, run: str, found: Complaints) -> None:
    match = _LINE.match(line)
    if match is None:
        if ended := _ENDED.match(line):
            found.ends[ended["how"]] += 1
        elif line.startswith("Traceback"):
            found.wrong[f"a traceback in {run}.log"] += 1
        return
    found.assigned += bool(_ASSIGNED.match(match["text"]))
    words = f"{match['level']}: {re.sub(r'[0-9a-f]{10,}|[0-9]+([.][0-9]+)?', '#', match['text'])}"
    if match["level"] == "WARNING":
        found.warnings[words] += 1
    elif match["level"] in {"ERROR", "CRITICAL"}:
        (found.warnings if _TOLD.match(match["text"]) else found.wrong)[words] += 1


def summary(counts: Mapping[str, int], most: int = 12) -> list[str]:
    """The most frequent, a line each."""
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    lines = [f"{count} x {words[:220]}" for words, count in ordered[:most]]
    return lines + ([f"... and {len(ordered) - most} more"] if len(ordered) > most else [])
