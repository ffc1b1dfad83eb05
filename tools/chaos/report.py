"""The table that a run ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from site_spider.commands.output import Column, render
from tools.chaos.happened import Happened
from tools.chaos.logs import Complaints, Recovery, summary
from tools.chaos.options import Options
from tools.chaos.plan import Kind
from tools.chaos.rebalances import Rebalances
from tools.chaos.repeats import Repeats
from tools.chaos.verdict import Verdict

Row = tuple[str, object]
Troubles = Sequence[tuple[str, Sequence[tuple[float, float]]]]  # what was away when


def _times(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    none = f", {len(values) - len(known)} without partitions" if len(known) < len(values) else ""
    if not known:
        return f"-{none}"
    return f"median {median(known):.2f} s, longest {max(known):.2f} s ({len(known)}){none}"


def _violence(happened: Happened, troubles: Troubles) -> list[Row]:
    rows: list[Row] = [(kind.value, count) for kind, count in happened.counts.items() if count]
    for name, outages in troubles:
        if outages:
            lengths = ", ".join(f"{end - begin:.1f}" for begin, end in outages)
            rows.append((f"{name} away, seconds", lengths))
    return rows


def _crawl(options: Options) -> str:
    """What was crawled with what."""
    if options.embedded:
        return "SQLite"
    kafka = f"Kafka ({options.brokers} brokers)" if options.brokers > 1 else "Kafka"
    more = ["exactly once"] * options.exactly_once + ["two tiers"] * options.topics
    return ", ".join([kafka, options.sink.capitalize(), *more])


def _recovery(recoveries: Sequence[Recovery]) -> list[Row]:
    calm = [one for one in recoveries if not one.in_outage]
    rough = [one for one in recoveries if one.in_outage]
    rows: list[Row] = []
    if calm:
        rows = [
            ("recovery, from the kill", _times([one.from_kill for one in calm])),
            ("recovery, from the start of the new process", _times([one.from_start for one in calm])),
        ]
    if rough:
        rows.append(
            ("recovery, from the kill, a server being away", _times([one.from_kill for one in rough]))
        )
    return rows


@dataclass(frozen=True)
class Outcome:
    """All that a run came to."""

    options: Options
    verdict: Verdict
    happened: Happened
    rebalances: Rebalances
    troubles: Troubles
    recoveries: Sequence[Recovery]
    repeats: Repeats
    found: Complaints
    wrong: Sequence[str]


def _rebalances(outcome: Outcome) -> list[Row]:
    asked = outcome.rebalances
    if not asked.count:
        return []
    counts = f"{asked.count} ({asked.joined} joined, {len(asked.left)} left)"
    return [
        (f"rebalances, every {outcome.options.rebalance_every:g} s", counts),
        ("times that partitions were assigned", outcome.found.assigned),
    ]


def table(outcome: Outcome) -> list[str]:
    """Its lines."""
    options, verdict, happened = outcome.options, outcome.verdict, outcome.happened
    rows: list[Row] = [
        ("random seed", options.random_seed),
        ("seed log and sink", _crawl(options)),
        ("processes", options.processes),
        ("seeds", verdict.seeds),
        ("pages", verdict.pages),
        ("results", verdict.results),
        *([("cancelled", verdict.cancelled.total())] if options.cancels else []),
        *([("deleted with their topic", verdict.deleted)] if options.recreated_topics else []),
        ("lost", verdict.lost_seeds),
        ("dead letters", verdict.dead_letters),
        ("fetched twice", f"{verdict.twice} ({verdict.twice / max(1, verdict.pages):.1%})"),
        *verdict.rows,
        *outcome.repeats.rows(),
        ("deaths", len(happened.deaths)),
        *_recovery(outcome.recoveries),
        *[row for row in _violence(happened, outcome.troubles) if row[0] != Kind.KILL.value],
        *_rebalances(outcome),
        *([("runs that found a server away at their start", happened.gave_up)] if happened.gave_up else []),
        ("crawlers that ended by themselves", _ends(outcome.found)),
        ("from the last new page to lag 0, seconds", f"{happened.tail_seconds:.1f}"),
        ("total time, seconds", f"{happened.seconds:.1f}"),
        ("wrong", len(outcome.wrong)),
    ]
    return render([Column("chaos"), Column("")], rows)


def _ends(found: Complaints) -> str:
    return ", ".join(f"{count} {how}" for how, count in sorted(found.ends.items())) or "0"


def details(outcome: Outcome) -> list[str]:
    """What was wrong, and what the logs warn of."""
    lines = [f"WRONG  {text}" for text in outcome.wrong]
    warnings = summary(outcome.found.warnings)
    lines += map(str, outcome.repeats.tolls)
    return lines + (["warnings in the logs:", *(f"  {line}" for line in warnings)] if warnings else [])
