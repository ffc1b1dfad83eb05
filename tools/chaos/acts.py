"""The table of acts: what can happen to the processes, servers and tasks of a crawl.

An act does not wait: what follows later is given to `stage.later`, so that events may overlap. An act that
finds no victim (all crawlers are just being started again) returns None, and the storm tries again in the
next round.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tools.chaos.feed import ChaosTask
from tools.deployment.relay import Fault

if TYPE_CHECKING:
    from tools.chaos.plan import Event
    from tools.chaos.storm import ChaosRun, Stage
    from tools.deployment.processes import Process

SHARE_OF_TWO = 0.3  # of the kills of a broker take a second one of three

T = TypeVar("T")
Happen = Callable[["Stage", "Event"], str | None]  # what was done, in words; None when it cannot be done now


class Act(NamedTuple):
    name: str  # of its option
    says: str
    help: str
    happen: Happen
    usual: int = 0  # times, where nobody says how often
    every_minutes: float = 0  # in a soak, about
    lasts: tuple[float, float] = (0, 0)  # seconds, from and to
    needs: str = ""  # `servers`, `tasks` or a sink


def chosen(candidates: Sequence[T], victim: float) -> T | None:
    return candidates[min(int(victim * len(candidates)), len(candidates) - 1)] if candidates else None


def _crawler(stage: Stage, event: Event, number: signal.Signals) -> tuple[ChaosRun, Process] | None:
    """One that has got this signal."""
    victim = chosen(stage.crew.crawlers(), event.victim)
    return victim if victim and victim[1].send(number) else None


def kill(stage: Stage, event: Event) -> str | None:
    if (victim := _crawler(stage, event, signal.SIGKILL)) is None:
        return None
    stage.deaths.append((victim[0].name, time.time()))
    return f"kill -9 of {victim[1].pid} in {victim[0].name}"


def freeze(stage: Stage, event: Event) -> str | None:
    if (victim := _crawler(stage, event, signal.SIGSTOP)) is None:
        return None
    run, crawler = victim

    def thaw() -> None:
        if crawler.send(signal.SIGCONT):
            stage.say(f"SIGCONT of {crawler.pid} in {run.name}")

    stage.later(event.seconds, thaw)
    return f"SIGSTOP of {crawler.pid} in {run.name} for {event.seconds:.0f} s"


def terminate(stage: Stage, event: Event) -> str | None:
    run = chosen(stage.crew.working(), event.victim)
    if run is None:
        return None
    run.terminate()

    def replace() -> None:
        stage.say(f"{stage.crew.start(run.size).name} takes the place of {run.name}")

    stage.later(event.seconds, replace)
    return f"SIGTERM of {run.name}"


def join(stage: Stage, _event: Event) -> str | None:
    return f"{stage.crew.start(1).name} joins"


def outage(name: str) -> Happen:
    """Of a server, or of one or two of several brokers; later they start again."""

    def happen(stage: Stage, event: Event) -> str | None:
        servers = stage.servers[name]
        if not stage.lives(name):
            return None  # one after the other
        # The fraction that is left after the choice says whether there are two.
        place = event.victim * len(servers)
        number = min(int(place), len(servers) - 1)
        two = len(servers) > 2 and place - number < SHARE_OF_TWO
        victims = [servers[(number + more) % len(servers)] for more in range(1 + two)]
        for server in victims:
            stage.away[server.title] = time.time()
            server.command("kill")

        def start() -> None:
            for server in victims:
                stage.say(f"start of {server.title}")
                server.begin_start()

        stage.later(event.seconds, start)
        return f"kill -9 of {' and '.join(server.title for server in victims)} for {event.seconds:.1f} s"

    return happen


def disturb(stage: Stage, event: Event) -> str | None:
    whole = [way for way in stage.ways.items() if way[0] not in stage.away]
    found = chosen([(*way, fault) for way in whole for fault in Fault], event.victim)
    if found is None:
        return None
    name, relay, fault = found
    stage.away[name] = time.time()
    relay.begin(fault)

    def heal() -> None:
        relay.heal()
        stage.is_back(name)
        stage.say(f"the {name} is whole again")

    stage.later(event.seconds, heal)
    return f"the {name} {fault.value} for {event.seconds:.1f} s"


def _task(stage: Stage, event: Event, fits: Callable[[ChaosTask], bool]) -> ChaosTask | None:
    """One that has not ended, if there is any."""
    free = [task for task in list(stage.tasks.values()) if fits(task)]
    return chosen([task for task in free if not task.is_ended] or free, event.victim)


def pause(stage: Stage, event: Event) -> str | None:
    task = _task(stage, event, lambda task: not (task.is_paused or task.is_cancelled))
    if task is None:
        return None
    task.is_paused = task.was_paused = True
    stage.commands.ask("pause", task)

    def resume() -> None:
        task.is_paused = False
        if not task.is_cancelled:
            stage.commands.ask("resume", task)
            stage.say(f"scrapy task resume {task.name}")

    stage.later(event.seconds, resume)
    return f"scrapy task pause {task.name} for {event.seconds:.1f} s"


def cancel(stage: Stage, event: Event) -> str | None:
    if task := _task(stage, event, lambda task: not task.is_cancelled):
        task.is_cancelled = True
        stage.commands.ask("cancel", task)
        return f"scrapy task cancel {task.name}"
    return None


def close(stage: Stage, event: Event) -> str | None:
    free = [task for task in list(stage.tasks.values()) if task.is_complete and not task.is_closed]
    if task := chosen(free, event.victim):
        stage.commands.ask("close", task)
        return f"scrapy task close {task.name}"
    return None


OUTAGES = ("broker_restarts", "elasticsearch_restarts")
_NETWORK = "the way to a server delays, throttles, resets, refuses or swallows for seconds (0)"
# Their order stays: a random seed means the same plan in later versions.
ACTS = {
    act.name: act
    for act in (
        Act("kills", "kill -9 of a crawler", "kill -9 of a crawler (5)", kill, 5, 1),
        Act("terms", "SIGTERM of a run", "SIGTERM of a run; later a new one starts (1)",
            terminate, 1, 5, (1, 6)),
        Act("stops", "SIGSTOP of a crawler", "SIGSTOP of a crawler, later SIGCONT (0)", freeze, 0, 6),
        Act("broker_restarts", "kill -9 of Kafka", "kill -9 and start of Kafka (1)",
            outage("kafka"), 1, 8, (2, 6), "servers"),
        Act("elasticsearch_restarts", "kill -9 of Elasticsearch", "likewise (1, with this sink)",
            outage("elasticsearch"), 1, 8, (2, 6), "elasticsearch"),
        Act("joins", "a run more", "runs that are added (0)", join, 0, 15),
        Act("proxies", "a network that fails", _NETWORK, disturb, 0, 3, (3, 20), "servers"),
        Act("pauses", "pause of a task", "a task is paused, and resumed later (0)",
            pause, 0, 2, (3, 10), "tasks"),
        Act("cancels", "cancel of a task", "a task is cancelled (0)", cancel, 0, 6, (0, 0), "tasks"),
        Act("closes", "close of a task", "", close, needs="tasks"),
    )
}  # fmt: skip
