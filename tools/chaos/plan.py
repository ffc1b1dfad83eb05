"""What `chaos.sh` can be told, and what will happen when: all of it from one random seed.

An event is due when a share of the crawl is done, so that all events come before the end however fast the
crawl is. While a server is away the crawl stands still sooner or later, so some events are tied to an
outage: they come seconds after it began.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tools import program
from tools.chaos.acts import ACTS, OUTAGES, Act
from tools.chaos.pages import LARGEST_TREE
from tools.program import within

DESCRIPTION = """\
Crawls seeds from a site on loopback while crawler processes are killed (kill -9), whole runs of
crawl_spider.sh are stopped (SIGTERM) and new ones started, processes freeze for longer than the
session timeout (SIGSTOP), and servers are killed and started again. Further options add what else
fails, and what else the crawl does. In the end every seed is looked for, and every item, end of a
task and request is compared.

Exit code: 0 nothing lost and nothing wrong, 1 otherwise, 2 a wrong option, 130 interrupted.
"""
FIRST_SHARE, LAST_SHARE = 0.04, 0.85
SHARE_TIED = 0.5  # of the outages get an event of another kind into their middle
STUCK_SECONDS = 600.0  # after which, and after the time of a soak, a crawl has failed


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = program.parser("chaos.sh", DESCRIPTION)
    add = parser.add_argument_group("the crawl").add_argument
    add("--seeds", type=within(int, 1, 1_000_000), default=2000, metavar="N", help="how many (2000)")
    add("--tree", type=within(int, 1, LARGEST_TREE), default=1, metavar="N", help="pages of each seed (1)")
    add("--processes", type=within(int, 1, 64), default=2, metavar="P", help="crawler processes (2)")
    add("--concurrency", type=within(int, 1, 1000), default=8, metavar="C", help="downloads of a process (8)")
    add("--embedded", action="store_true", help="the SQLite seed log and local sink, no servers")
    add("--sink", choices=("elasticsearch", "kafka"), help="where results go (elasticsearch)")
    add("--exactly-once", action="store_true", help="SITE_KAFKA_EXACTLY_ONCE; needs --sink kafka")
    add("--items", action="store_true", help="a spider that yields items; each has to be there once")
    add("--topics", action="store_true", help="two tiers of seeds (SITE_SEED_TOPICS)")
    add("--tasks", type=within(int, 0, 500), metavar="N", help="seeds belong to N tasks; all are closed (0)")
    add("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="for the crawlers")
    add = parser.add_argument_group("what happens to it").add_argument
    for act in (act for act in ACTS.values() if act.help):
        add(_option(act.name), type=within(int, 0, 1000), metavar="N", help=act.help)
    add("--stop-seconds", type=float, default=15, metavar="S", help="how long --stops freezes (15)")
    words = "join and SIGTERM in turn (never)"
    add("--rebalance-every", type=within(float, 1, 3600), default=0, metavar="S", help=words)
    add("--brokers", type=int, choices=(1, 3), default=1, help="of Kafka; 3: a kill hits one or two (1)")
    add = parser.add_argument_group("the run").add_argument
    words = "produce seeds for so long; all that fits happens by chance, unless an option says how often"
    add("--soak", type=within(float, 0.5, 1440), default=0, metavar="MINUTES", help=words)
    add("--random-seed", type=int, metavar="R", help="repeats the plan of a run")
    parser.add_argument("--folder", type=Path, required=True, help=argparse.SUPPRESS)  # made by chaos.sh
    return parser


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def read_options(arguments: Sequence[str]) -> argparse.Namespace:
    """With `counts` of all acts, and what else follows; ends the process with 2 when they are wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    given.settings = dict(given.set)
    if given.random_seed is None:
        given.random_seed = random.randrange(1_000_000)
    given.sink = given.sink or ("local" if given.embedded else "elasticsearch")
    tells_ends = not (given.exactly_once or given.topics)
    if why := next(_mistakes(given, tells_ends), ""):
        parser.exit(2, f"chaos.sh: {why}\n")
    if given.tasks is None:
        given.tasks = int(bool(given.soak and tells_ends))
    given.items = given.items or bool(given.soak)
    given.counts = _counts(given)
    return given


def _mistakes(given: argparse.Namespace, tells_ends: bool) -> Iterator[str]:
    """What does not go together, and the remedy."""
    asked = {name: act for name, act in ACTS.items() if getattr(given, name, None)}
    if given.embedded:
        wrong = [_option(name) for name, act in asked.items() if act.needs not in ("", "tasks")]
        wrong += ["--sink"] if given.sink != "local" else []
        wrong += ["--exactly-once"] if given.exactly_once else []
        wrong += ["--brokers"] if given.brokers > 1 else []
        if wrong:
            yield f"{' and '.join(wrong)} needs servers, which --embedded has not: leave one out"
    if given.exactly_once and given.sink != "kafka":
        yield f"--exactly-once stores results in Kafka, but --sink is {given.sink}: say --sink kafka"
    for name, act in asked.items():
        if act.needs not in ("", "servers", "tasks", given.sink):
            yield f"{_option(name)} needs --sink {act.needs}, but --sink is {given.sink}: leave one out"
        if act.needs == "tasks" and not given.tasks and not (given.soak and tells_ends):
            yield f"{_option(name)} needs tasks: say --tasks N"
    if given.tasks and not tells_ends:
        name = "--exactly-once" if given.exactly_once else "--topics"
        yield f"the end of tasks is not told with {name}: leave --tasks or it out"
    if not given.soak and given.cancels and given.cancels >= given.tasks:
        yield f"--cancels is {given.cancels}, which leaves none of {given.tasks} tasks: say a larger --tasks"
    if not given.soak and (given.tasks or 0) > given.seeds:
        yield f"--tasks is {given.tasks}, but --seeds is {given.seeds}: each task needs a seed"


def _counts(given: argparse.Namespace) -> dict[str, int]:
    """Of each act, with all that nobody gave; in a soak by chance, about as often as the table says."""
    rng, found = random.Random(f"soak {given.random_seed}"), {}

    def fits(act: Act) -> bool:
        there = {"": True, "tasks": bool(given.tasks), "servers": not given.embedded}
        return there.get(act.needs, given.sink == act.needs)

    for name, act in ACTS.items():
        often = rng.uniform(0.6, 1.4) / act.every_minutes if act.every_minutes else 0
        usual = int(given.soak * often + rng.random()) if given.soak else act.usual
        said = getattr(given, name, None)
        found[name] = (usual if fits(act) else 0) if said is None else said
    # A soak closes each task when it is complete.
    return {**found, "closes": 0 if given.soak else given.tasks // 2}


@dataclass(frozen=True)
class Event:
    """One event: due `delay_seconds` after `share` of the crawl was done.

    `seconds` is how long it lasts: until the server is started again, the frozen process goes on, the
    stopped run is replaced, the task is resumed. `victim`, from 0 to 1, says which of those that there are.
    """

    share: float
    name: str  # of the act
    victim: float
    seconds: float
    delay_seconds: float = 0

    def __str__(self) -> str:
        later = f" + {self.delay_seconds:.1f} s" if self.delay_seconds else ""
        lasts = f" for {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.share:6.1%}{later}: {ACTS[self.name].says}{lasts}"


def plan(options: argparse.Namespace) -> list[Event]:
    rng = random.Random(options.random_seed)
    names = [name for name in ACTS for _ in range(options.counts[name])]
    rng.shuffle(names)
    width = (LAST_SHARE - FIRST_SHARE) / max(1, len(names))
    result: list[Event] = []
    for place, name in enumerate(names):
        share, victim, ends = FIRST_SHARE + width * (place + rng.random()), rng.random(), ACTS[name].lasts
        seconds = options.stop_seconds if name == "stops" else rng.uniform(*ends) if any(ends) else 0
        event = Event(share, name, victim, seconds)
        is_tied, delay_seconds = rng.random() < SHARE_TIED, rng.uniform(0.5, 5)
        if is_tied and result and result[-1].name in OUTAGES and name not in OUTAGES:
            event = replace(event, share=result[-1].share, delay_seconds=delay_seconds)
        result.append(event)
    return result
