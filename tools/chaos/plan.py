"""What `chaos.sh` can be told, and what will happen when: all of it from one random seed.

An event is due when a share of the crawl is done, so that all events come before the end however fast the
crawl is. While a server is away the crawl stands still sooner or later, so some events are tied to an
outage: they come seconds after it began.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tools.chaos.acts import ACTS, MOST_PARTITIONS, OUTAGES, Act
from tools.chaos.pages import LARGEST_TREE

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
_ON_SERVERS = ("broker_restarts", "elasticsearch_restarts", "hbase_restarts", "elasticsearch_blocks",
               "added_partitions", "recreated_topics", "proxies")  # fmt: skip


@dataclass(frozen=True)
class Options:
    """One run; the names are those of the options."""

    seeds: int
    tree: int
    processes: int
    concurrency: int
    embedded: bool
    sink: str
    exactly_once: bool
    items: bool
    topics: bool
    tasks: int
    settings: dict[str, str]  # of the crawlers, besides those of the run
    stop_seconds: float
    rebalance_every: float
    brokers: int
    soak: float  # minutes
    random_seed: int
    timeout: float
    keep: bool
    folder: Path
    counts: dict[str, int]  # of acts

    @property
    def links_come_again(self) -> bool:
        """Whether a page may be met as a link by a process that does not know that it is done.

        After a death the links of a tree are spilled, to processes that may not share the dupefilter.
        """
        return self.tree > 1 and self.settings.get("SITE_DUPEFILTER", "memory") != "redis"


def _number(kind: type, least: float, most: float) -> Callable[[str], Any]:
    def number(text: str) -> Any:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least:g} to {most:g}")
        return value

    return number


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=VALUE")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="chaos.sh",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    whole, real = (lambda *ends: _number(int, *ends)), (lambda *ends: _number(float, *ends))
    add = parser.add_argument_group("the crawl").add_argument
    add("--seeds", type=whole(1, 1_000_000), default=2000, metavar="N", help="how many (2000)")
    add("--tree", type=whole(1, LARGEST_TREE), default=1, metavar="PAGES", help="pages of each seed (1)")
    add("--processes", type=whole(1, 64), default=2, metavar="P", help="crawler processes (2)")
    add("--concurrency", type=whole(1, 1000), default=8, metavar="C", help="downloads of a process (8)")
    add("--embedded", action="store_true", help="the SQLite seed log and local sink, no servers")
    add("--sink", choices=("elasticsearch", "kafka", "hbase"), help="where results go (elasticsearch)")
    add("--exactly-once", action="store_true", help="SITE_KAFKA_EXACTLY_ONCE; needs --sink kafka")
    add("--items", action="store_true", help="a spider that yields items; each has to be there once")
    add("--topics", action="store_true", help="two tiers of seeds (SITE_SEED_TOPICS)")
    add("--tasks", type=whole(0, 500), metavar="N", help="the seeds belong to N tasks, all are closed (0)")
    add("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="for the crawlers")
    group = parser.add_argument_group("what happens to it")
    add = group.add_argument
    for act in (act for act in ACTS.values() if act.help):
        add(_option(act.name), type=whole(0, act.most), metavar="N", help=act.help)
    add("--stop-seconds", type=float, default=15, metavar="S", help="how long --stops freezes (15)")
    add(
        "--rebalance-every",
        type=real(1, 3600),
        default=0,
        metavar="S",
        help="join and SIGTERM in turn (never)",
    )
    add("--brokers", type=int, choices=(1, 3), default=1, help="of Kafka; 3: a kill hits one or two (1)")
    add = parser.add_argument_group("the run").add_argument
    words = "produce seeds for so long; all that fits happens by chance, unless an option says how often"
    add("--soak", type=real(0.5, 1440), default=0, metavar="MINUTES", help=words)
    add("--random-seed", type=int, metavar="R", help="repeats the plan of a run")
    add("--timeout", type=float, default=600, metavar="S", help="when a crawl counts as stuck (600)")
    add("--keep", action="store_true", help="keep logs and data, and say where (always when it fails)")
    parser.add_argument("--folder", type=Path, required=True, help=argparse.SUPPRESS)  # made by chaos.sh
    return parser


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def read_options(arguments: Sequence[str]) -> Options:
    """The options of a command line; ends the process with 2 when they are wrong."""
    parser = _parser()
    values = vars(parser.parse_args(arguments))
    values["settings"] = dict(values.pop("set"))
    if values["random_seed"] is None:
        values["random_seed"] = random.randrange(1_000_000)
    counts = {name: values.pop(name, None) for name in ACTS}
    values["sink"] = (
        "local" if values["embedded"] and not values["sink"] else values["sink"] or "elasticsearch"
    )
    if why := _mistake(values, counts):
        parser.exit(2, f"chaos.sh: {why}\n")
    if values["tasks"] is None:
        values["tasks"] = int(bool(values["soak"] and _tells_ends(values)))
    if values["soak"]:
        values["items"] = True
        values["timeout"] += 60 * values["soak"]
    return Options(**values, counts=_completed(values, counts))


# --- which go together ----------------------------------------------------------------------------


def _mistake(values: dict[str, Any], counts: dict[str, int | None]) -> str:
    """What does not go together, and the remedy; empty when all does."""
    return _wrong_sink(values, counts) or _wrong_tasks(values, counts) or _wrong_topic(values, counts)


def _wrong_sink(values: dict[str, Any], counts: dict[str, int | None]) -> str:
    sink = values["sink"]
    if values["embedded"]:
        given = [_option(name) for name in _ON_SERVERS if counts[name]]
        given += ["--sink"] if sink != "local" else []
        given += ["--exactly-once"] if values["exactly_once"] else []
        given += ["--brokers"] if values["brokers"] > 1 else []
        return (
            f"{' and '.join(given)} needs servers, which --embedded has not: leave one out" if given else ""
        )
    if values["exactly_once"] and sink != "kafka":
        return f"--exactly-once stores results in Kafka, but --sink is {sink}: say --sink kafka"
    for name, act in ACTS.items():
        if counts[name] and act.needs not in ("", "servers", "tasks", sink):
            return f"{_option(name)} needs --sink {act.needs}, but --sink is {sink}: leave one out"
    return ""


def _wrong_tasks(values: dict[str, Any], counts: dict[str, int | None]) -> str:
    tasks, soak, cancels = values["tasks"], values["soak"], counts["cancels"] or 0
    if tasks and not _tells_ends(values):
        name = "--exactly-once" if values["exactly_once"] else "--topics"
        return f"the end of tasks is not told with {name}: leave --tasks or it out"
    for name in ("pauses", "cancels"):
        if counts[name] and not tasks and (not soak or not _tells_ends(values)):
            return f"{_option(name)} needs tasks: say --tasks N"
    if not soak and cancels and cancels >= (tasks or 0):
        return f"--cancels is {cancels}, which leaves none of {tasks} tasks: say a larger --tasks"
    if not soak and (tasks or 0) > values["seeds"]:
        return f"--tasks is {tasks}, but --seeds is {values['seeds']}: each task needs a seed"
    return ""


def _wrong_topic(values: dict[str, Any], counts: dict[str, int | None]) -> str:
    if not counts["recreated_topics"]:
        return ""
    if values["tree"] > 1:
        return "--recreated-topics would delete links that were spilled as well: leave --tree or it out"
    if values["tasks"] or (values["soak"] and values["tasks"] is None and _tells_ends(values)):
        return "--recreated-topics would end tasks by positions of the deleted topic: say --tasks 0"
    return ""


def _tells_ends(values: dict[str, Any]) -> bool:
    return not (values["exactly_once"] or values["topics"])


def _completed(values: dict[str, Any], counts: dict[str, int | None]) -> dict[str, int]:
    """With all that nobody gave; in a soak by chance, about as often as the table says."""
    rng, found = random.Random(f"soak {values['random_seed']}"), {}
    for name, act in ACTS.items():
        often = rng.uniform(0.6, 1.4) / act.every_minutes if act.every_minutes else 0
        usual = int(values["soak"] * often + rng.random()) if values["soak"] else act.usual
        given = counts[name]
        found[name] = (usual if _fits(act, values) else 0) if given is None else given
    if values["soak"] and counts["added_partitions"] is None:
        found["added_partitions"] = min(MOST_PARTITIONS, found["added_partitions"])
    # A soak closes each task when it is complete.
    found["closes"] = 0 if values["soak"] else values["tasks"] // 2
    return found


def _fits(act: Act, values: dict[str, Any]) -> bool:
    if act.name == "recreated_topics" and (values["tasks"] or values["tree"] > 1):
        return False
    there = {"": True, "tasks": bool(values["tasks"]), "servers": not values["embedded"]}
    return there.get(act.needs, values["sink"] == act.needs)


# --- the plan -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """One event: due `delay_seconds` after `share` of the crawl was done.

    `seconds` is how long it lasts: until the server is started again, the frozen process goes on, the
    stopped run is replaced, the task is resumed, the topic is created. `victim`, from 0 to 1, says which of
    those that there are.
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


def plan(options: Options) -> list[Event]:
    """The events in their order."""
    rng = random.Random(options.random_seed)
    names = [name for name in ACTS for _ in range(options.counts[name])]
    rng.shuffle(names)
    width = (LAST_SHARE - FIRST_SHARE) / max(1, len(names))
    shares = [FIRST_SHARE + width * (place + rng.random()) for place in range(len(names))]
    result: list[Event] = []
    for share, name in zip(shares, names, strict=True):
        victim, ends = rng.random(), ACTS[name].lasts
        seconds = options.stop_seconds if name == "stops" else rng.uniform(*ends) if any(ends) else 0
        result.append(Event(share, name, victim, seconds))
    for number, event in enumerate(result):  # some of those that follow an outage are moved into it
        tie, delay_seconds = rng.random() < SHARE_TIED, rng.uniform(0.5, 5)
        before = result[number - 1] if number else None
        if tie and before and before.name in OUTAGES and event.name not in OUTAGES:
            result[number] = replace(event, share=before.share, delay_seconds=delay_seconds)
    return result
