"""The single reasons why a crawl is slow: each rule says a sentence with the number in it, or nothing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from site_spider.console.fleet import (
    FAILURE,
    LOOK_BACK_SECONDS,
    OUTCOME,
    PAUSE,
    STEP_SECONDS,
    Cause,
    Life,
    View,
    Weight,
    duration,
    summed,
)
from site_spider.console.process_state import ProcessState, TaskFigures, tasks
from site_spider.intake.room import PAUSES_SAID
from site_spider.tasks.orders import TaskFacts
from site_spider.text import plural

_LEAST_PAUSE_SHARE = 0.05
_LEAST_HOST_SHARE = 0.5
_BUSY_SHARE = 0.8
_LEAST_WAITING = 20
_LEAST_FAILURE_SHARE = 0.1
_LEAST_TASK_SEEDS = 5
_TASK_FAILURE_SHARE = 0.5
_SLOW_LOOP_SECONDS = 0.5
_CLOCK_SECONDS = 10.0
_MOST_NAMES = 3
_MOST_TASKS = 5
CALLBACK = "callback"
FAILED = ("failure", "dead_letter")

PAUSES = PAUSES_SAID | {
    "sink": "a sink is away, or too many results wait for it (SITE_SINK_BACKLOG_BYTES)",
    "span": "a slow seed holds its partition (SITE_MAX_SPAN_OFFSETS)",
    "suspicion": "seeds that may have killed a process are crawled one by one",
    "kafka": "the seed log is away, or does not take what is sent to it",
}
_HARMLESS = ("frontier", "stop")  # a frontier with enough to do is no trouble by itself


def _lost(view: View) -> Iterator[str]:
    for seen in view.fleet.seen.values():
        if seen.state.missing:
            yield f"Process {seen.state.name} cannot account for {seen.state.missing} of its seeds: a bug."


def _nobody(view: View) -> Iterator[str]:
    if not view.living and view.lag != 0:
        known = "was heard of" if view.lag is None else f"runs; lag {view.lag:,}"
        yield f"No process of the group {known}."


def _silent(view: View) -> Iterator[str]:
    silent = [seen for seen in view.fleet.seen.values() if seen.life(view.now) is Life.SILENT]
    if silent:
        last = duration(view.now - max(seen.at for seen in silent))
        names = _listed([seen.state.name for seen in silent])
        are = "is" if len(silent) == 1 else "are"
        yield f"{plural(len(silent), 'process')} {are} silent: {names}, last heard of {last} ago."


def _sinks(view: View) -> Iterator[str]:
    living = view.living
    away: dict[str, list[ProcessState]] = defaultdict(list)
    for state in living:
        for sink in state.sinks:
            if not sink.available:
                away[sink.name].append(state)
    for name, states in away.items():
        backlog = sum(sink.backlog for state in states for sink in state.sinks if sink.name == name)
        paused = _paused_words(view, "sink") or "New seeds wait"
        whole, say = plural(len(living), "process"), "says" if len(living) == 1 else "say"
        yield f"{paused}: sink {name} away, as {len(states)} of {whole} {say}; {backlog:,} results wait for it."


def _pauses(view: View, *, harmless: bool = False) -> Iterator[str]:
    is_away = any(not sink.available for state in view.living for sink in state.sinks)
    pausing = Counter(state.pausing for state in view.living)
    for cause, share in _pause_shares(view).items():
        is_said = cause == "sink" and is_away
        if share < _LEAST_PAUSE_SHARE or is_said or (cause in _HARMLESS) != harmless:
            continue
        still = f"; {plural(pausing[cause], 'process')} now" if pausing[cause] else "; none now"
        yield f"{_paused_words(view, cause)}: {PAUSES.get(cause, cause)}{still}."


def _pause_shares(view: View) -> dict[str, float]:
    """The share of each cause in the time of all processes in the last ten minutes."""
    time = sum(step.process_seconds for step in view.of_late())
    return {cause: min(1.0, seconds / time) for cause, seconds in view.counted(PAUSE).items()} if time else {}


def _paused_words(view: View, cause: str) -> str:
    steps, share = view.of_late(), _pause_shares(view).get(cause, 0.0)
    if not steps or not share:
        return ""
    covered = view.until - steps[0].number * STEP_SECONDS
    mean = f" on average of {len(view.living)} processes" if len(view.living) > 1 else ""
    return f"Paused {share * covered:.0f} of the last {covered:.0f} s{mean}"


def _hosts(view: View) -> Iterator[str]:
    waiting, reasons = Counter[str](), dict[str, str]()
    out = Counter[str]()
    for state in view.living:
        for host in state.hosts:
            waiting[host.host] += host.waiting
            out[host.host] += host.out
            reasons[host.host] = host.reason
    whole = max(sum(state.waiting for state in view.living), sum(waiting.values()))
    if whole < _LEAST_WAITING:
        return
    name, most = waiting.most_common(1)[0] if waiting else ("", 0)
    if most >= _LEAST_HOST_SHARE * whole:
        yield (
            f"Host {name} holds {_percent(most, whole)} of the waiting requests ({most:,} of {whole:,}); "
            f"{out[name]:,} are out, and the next one waits ({reasons[name]}). "
            "CONCURRENT_REQUESTS_PER_DOMAIN and DOWNLOAD_DELAY bound what one host gets."
        )


def _backing_off(view: View) -> Iterator[str]:
    reasons = summed(state.host_reasons for state in view.living)
    hosts, resting = reasons["waiting"], reasons["back-off"]
    if resting and resting >= _LEAST_HOST_SHARE * hosts:
        yield f"{resting:,} of {hosts:,} waiting hosts asked for a pause (back-off after 429 or 503)."


def _busy(view: View) -> Iterator[str]:
    reasons = summed(state.host_reasons for state in view.living)
    hosts, busy = reasons["waiting"], reasons["busy"] + reasons["delay"]
    if busy and busy >= _BUSY_SHARE * hosts and sum(s.waiting for s in view.living) >= _LEAST_WAITING:
        yield (
            f"{busy:,} of {hosts:,} waiting hosts have as many requests as they may have "
            "(CONCURRENT_REQUESTS_PER_DOMAIN, DOWNLOAD_DELAY): more processes would not be faster."
        )


def _failures(view: View) -> Iterator[str]:
    outcomes = view.counted(OUTCOME)
    ended, failed = sum(outcomes.values()), sum(outcomes[name] for name in FAILED)
    if failed >= 1 and failed >= _LEAST_FAILURE_SHARE * ended:
        yield (
            f"{_percent(failed, ended)} of the seeds of the last {duration(LOOK_BACK_SECONDS)} failed"
            f"{_reasons(view.counted(FAILURE))}."
        )


def _tasks(view: View) -> Iterator[str]:
    worst = sorted(tasks(view.living), key=lambda task: -max(_failed(task), task.reasons.get(CALLBACK, 0)))
    failing = [task for task in worst if _fails(task)]
    for task in failing[:_MOST_TASKS]:
        ended = sum(task.outcomes.values())
        pages = task.reasons.get(CALLBACK, 0)
        what = f"the spider's callback fails on {plural(pages, 'page')}, " if pages else ""
        failed = f"{_failed(task):,} of {ended:,} seeds failed{_reasons(Counter(task.reasons))}"
        yield f"Task {task.task_id}: {what}{failed}."


def _parked(view: View) -> Iterator[str]:
    """Seeds that nobody crawls until somebody says so."""
    waiting = sorted((task for task in view.tasks if task.parked), key=lambda task: -task.parked)
    if waiting:
        whole, names = view.parked, _listed([_called(task) for task in waiting])
        are = "seed is" if whole == 1 else "seeds are"
        yield f"{whole:,} {are} parked of {plural(len(waiting), 'task')}: {names}."


def _called(task: TaskFacts) -> str:
    why = f"{task.state}, {task.reason.replace('_', ' ')}" if task.reason else task.state
    return f"{task.task_id} ({why})"


def _fails(task: TaskFigures) -> bool:
    ended, failed = sum(task.outcomes.values()), _failed(task)
    is_bad = ended >= _LEAST_TASK_SEEDS and failed >= _TASK_FAILURE_SHARE * ended
    return is_bad or task.reasons.get(CALLBACK, 0) > 0


def _failed(task: TaskFigures) -> int:
    return sum(task.outcomes.get(name, 0) for name in FAILED)


def _loops(view: View) -> Iterator[str]:
    slow = [state for state in view.living if state.loop_lag_seconds >= _SLOW_LOOP_SECONDS]
    if slow:
        worst = max(slow, key=lambda state: state.loop_lag_seconds)
        yield (
            f"The event loop of {worst.name} was late by {worst.loop_lag_seconds:.1f} s: a callback or "
            "pipeline blocks it, or the machine has too little CPU."
        )


def _log_away(view: View) -> Iterator[str]:
    away = [state for state in view.living if state.log_is_away]
    if away:
        yield f"Kafka does not answer {len(away)} of {plural(len(view.living), 'process')}."


def _unowned(view: View) -> Iterator[str]:
    """Partitions without an owner, as the log says, or else as the processes say."""
    log, owned = view.log, {partition for state in view.living for partition in state.partitions}
    if log is None or not (log.partitions and view.lag and view.living and (owned or log.unowned)):
        return
    missing = len(log.partitions) - len(owned) if log.unowned is None else len(log.unowned)
    if missing > 0:
        named = f": {_listed([*map(str, log.unowned)])}" if log.unowned else ""
        yield f"{missing} of {len(log.partitions)} partitions have no owner now{named}."


def _reasons(counts: Counter[str]) -> str:
    named = [
        f"{name.replace('_', ' ')} {count:,.0f}" for name, count in counts.most_common(_MOST_NAMES) if count >= 0.5
    ]
    return f" (pages: {', '.join(named)})" if named else ""


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(sorted(names)[:_MOST_NAMES]) + more


def _clocks(view: View) -> Iterator[str]:
    for state in view.living:
        seconds = state.clock_ahead_seconds
        if abs(seconds) > _CLOCK_SECONDS:
            which = "ahead of" if seconds > 0 else "behind"
            where = state.machine or state.name
            yield f"The clock of {where} is {abs(seconds):,.0f} s {which} the broker's."


RULES: tuple[
    tuple[Weight, str, Sequence[Callable[[View], Iterator[str]]]], ...
] = (  # each with the page that says more
    (Weight.BUG, "processes", [_lost]),
    (Weight.STOP, "processes", [_nobody, _log_away]),
    (Weight.STOP, "sinks", [_sinks]),
    (Weight.SLOW, "processes", [_pauses]),
    (Weight.SLOW, "tasks", [_tasks, _parked]),
    (Weight.SLOW, "failures", [_failures]),
    (Weight.SLOW, "hosts", [_hosts, _backing_off]),
    (Weight.SLOW, "processes", [_silent, _loops, _clocks, _unowned]),
    (Weight.NOTE, "processes", [partial(_pauses, harmless=True)]),
    (Weight.NOTE, "hosts", [_busy]),
)


# --- In words: why a crawl is slow, or stands ------------------------------------------------------------


def causes(view: View) -> list[Cause]:
    """All that slow the crawl, the worst first."""
    return [Cause(weight, text, page) for weight, page, rules in RULES for rule in rules for text in rule(view)]


def verdict(view: View, found: Sequence[Cause]) -> str:
    """The whole in one sentence."""
    if view.is_unknown:
        return "Nothing is known of the crawl."
    if any(cause.weight <= Weight.STOP for cause in found):
        return "The crawl is held up."
    if view.lag == 0:
        seeds = "seed" if view.parked == 1 else "seeds"
        parked = f" but {view.parked:,} parked {seeds} of tasks that do not go on" if view.parked else ""
        return f"Nothing is left to do{parked}."
    if any(cause.weight is Weight.SLOW for cause in found):
        return "Something slows or harms the crawl."
    if not view.living:
        return "No process runs."
    return "Nothing is seen that slows the crawl."
