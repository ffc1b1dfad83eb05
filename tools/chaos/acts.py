"""The table of acts: what can happen to the processes, servers, topics and tasks of a crawl.

An act does not wait: what follows later is given to `stage.later`, so that events may overlap. An act that
finds no victim (all crawlers are just being started again) returns None, and the storm tries again in the
next round.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewPartitions, NewTopic  # type: ignore[attr-defined] # not in its stubs
from elasticsearch import ApiError, Elasticsearch, TransportError

from site_spider.errors import LogUnavailable
from tools.chaos.crew import Death
from tools.chaos.tasks import ChaosTask
from tools.deployment.relay import Fault

if TYPE_CHECKING:
    from tools.chaos.plan import Event
    from tools.chaos.stage import Stage

SHARE_OF_TWO = 0.3  # of the kills of a broker take a second one of three
ANSWER_SECONDS = 5.0
READ_ONLY, SEED_TOPIC = "Elasticsearch read-only", "seed topic"
MOST_PARTITIONS = 4  # that a soak adds

T = TypeVar("T")


class Act(NamedTuple):
    """One row of the table."""

    name: str  # of its option
    says: str
    help: str
    happen: Callable[[Stage, Event], str | None]  # what was done, in words; None when it cannot be done now
    usual: int = 0  # times, where nobody says how often
    every_minutes: float = 0  # in a soak, about
    lasts: tuple[float, float] = (0, 0)  # seconds, from and to
    needs: str = ""  # `servers`, `tasks` or a sink
    most: int = 1000


def chosen(candidates: Sequence[T], victim: float) -> T | None:
    """One of them, None when there are none."""
    return candidates[min(int(victim * len(candidates)), len(candidates) - 1)] if candidates else None


# --- processes ------------------------------------------------------------------------------------


def kill(stage: Stage, event: Event) -> str | None:
    victim = chosen(stage.crew.crawlers(), event.victim)
    if victim is None or not victim[1].send(signal.SIGKILL):
        return None
    run, crawler = victim
    stage.deaths.append(Death(run, crawler, time.time()))
    return f"kill -9 of {crawler.pid} in {run.name}"


def freeze(stage: Stage, event: Event) -> str | None:
    victim = chosen(stage.crew.crawlers(), event.victim)
    if victim is None or not victim[1].send(signal.SIGSTOP):
        return None
    run, crawler = victim

    def thaw() -> bool:
        if crawler.send(signal.SIGCONT):
            stage.say(f"SIGCONT of {crawler.pid} in {run.name}")
        return True

    stage.later(event.seconds, thaw)
    return f"SIGSTOP of {crawler.pid} in {run.name} for {event.seconds:.0f} s"


def terminate(stage: Stage, event: Event) -> str | None:
    run = chosen(stage.crew.working(), event.victim)
    if run is None:
        return None
    run.terminate()

    def replace() -> bool:
        stage.say(f"{stage.crew.start(run.size).name} takes the place of {run.name}")
        return True

    stage.later(event.seconds, replace)
    return f"SIGTERM of {run.name}"


def join(stage: Stage, _event: Event) -> str | None:
    return f"{stage.crew.start(1).name} joins"


# --- servers and the network ----------------------------------------------------------------------


def outage(name: str) -> Callable[[Stage, Event], str | None]:
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
            stage.begins(server.title)
            server.command("kill")

        def start() -> bool:
            for server in victims:
                stage.say(f"start of {server.title}")
                server.begin_start()
            return True

        stage.later(event.seconds, start)
        return f"kill -9 of {' and '.join(server.title for server in victims)} for {event.seconds:.1f} s"

    return happen


def disturb(stage: Stage, event: Event) -> str | None:
    whole = [way for way in stage.ways.items() if way[0] not in stage.away]
    found = chosen([(*way, fault) for way in whole for fault in Fault], event.victim)
    if found is None:
        return None
    name, relay, fault = found
    stage.begins(name)
    relay.begin(fault)

    def heal() -> bool:
        relay.heal()
        stage.ends_now(name)
        stage.say(f"the {name} is whole again")
        return True

    stage.later(event.seconds, heal)
    return f"the {name} {fault.value} for {event.seconds:.1f} s"


def block(stage: Stage, event: Event) -> str | None:
    """None also when there is no index yet."""
    if READ_ONLY in stage.away or not _set_blocks(stage, blocks=True):
        return None
    stage.begins(READ_ONLY)

    def end() -> bool:
        if not _set_blocks(stage, blocks=False):
            return False
        stage.ends_now(READ_ONLY)
        stage.say("Elasticsearch takes writes again")
        return True

    stage.later(event.seconds, end)
    return f"Elasticsearch is read-only for {event.seconds:.1f} s"


def _set_blocks(stage: Stage, *, blocks: bool) -> bool:
    if not stage.lives("elasticsearch"):
        return False
    settings = stage.deployment.settings
    hosts = settings["SITE_ELASTICSEARCH_HOSTS"]
    with Elasticsearch(hosts, request_timeout=ANSWER_SECONDS, max_retries=0) as client:
        try:
            found = client.indices.put_settings(
                index=f"{settings['SITE_RESULTS_INDEX']},{settings['SITE_ITEMS_INDEX']}",
                settings={"index.blocks.read_only": blocks},
                ignore_unavailable=True,
                allow_no_indices=False,
            )
        except (ApiError, TransportError):
            return False
    return bool(found["acknowledged"])


# --- topics of seeds ------------------------------------------------------------------------------


def add_partition(stage: Stage, event: Event) -> str | None:
    """And then the seeds come that were kept back for it."""
    if not stage.lives("kafka") or SEED_TOPIC in stage.away:
        return None
    topic = stage.topics[int(event.victim * len(stage.topics))]
    try:
        known = stage.admin.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions
        wanted = len(known) + 1
        stage.admin.create_partitions([NewPartitions(topic, wanted)])[topic].result(ANSWER_SECONDS)
    except (KafkaException, TimeoutError):
        return None
    stage.feed.next_portion()
    return f"{topic} has {wanted} partitions"


def recreate_topic(stage: Stage, event: Event) -> str | None:
    """What the group has not committed is gone by the operator's hand; as many seeds come afterwards."""
    feed = stage.feed
    can = stage.lives("kafka") and SEED_TOPIC not in stage.away
    if not can or not feed.pauses.acquire(blocking=False):
        return None
    topic = stage.topics[int(event.victim * len(stage.topics))]
    try:
        before = stage.deployment.log.progress(topic, stage.deployment.group)
    except LogUnavailable:
        feed.pauses.release()
        return None
    stage.begins(SEED_TOPIC)
    gone = feed.delete(topic, {one.partition: one.committed.offset for one in before if one.committed})
    _delete(stage, topic)

    def create() -> bool:
        if not _created(stage, topic, len(before)):
            return False
        stage.ends_now(SEED_TOPIC)
        feed.pauses.release()
        feed.again(gone)
        stage.say(f"{topic} is there again, and empty")
        return True

    stage.later(event.seconds, create)
    return f"{topic} is deleted with {gone} seeds, for {event.seconds:.1f} s"


def _delete(stage: Stage, topic: str) -> None:
    """Or have it done by the next attempt to create it."""
    with suppress(KafkaException, TimeoutError):
        stage.admin.delete_topics([topic])[topic].result(ANSWER_SECONDS)


def _created(stage: Stage, topic: str, partitions: int) -> bool:
    if not stage.lives("kafka"):
        return False
    wanted = NewTopic(topic, partitions, stage.options.brokers)
    try:
        stage.admin.create_topics([wanted])[topic].result(ANSWER_SECONDS)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            _delete(stage, topic)
        return False
    except TimeoutError:
        return False
    return True


# --- tasks ----------------------------------------------------------------------------------------


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

    def resume() -> bool:
        task.is_paused = False
        if not task.is_cancelled:
            stage.commands.ask("resume", task)
            stage.say(f"scrapy task resume {task.name}")
        return True

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


_BROKER, _ELASTICSEARCH, _HBASE = "kill -9 of Kafka", "kill -9 of Elasticsearch", "kill -9 of HBase"
OUTAGES = ("broker_restarts", "elasticsearch_restarts", "hbase_restarts")
# Their order stays: a random seed means the same plan in later versions.
ACTS = {
    act.name: act
    for act in (
        Act("kills", "kill -9 of a crawler", "kill -9 of a crawler (5)", kill, 5, 1),
        Act("terms", "SIGTERM of a run", "SIGTERM of a run; later a new one starts (1)",
            terminate, 1, 5, (1, 6)),
        Act("stops", "SIGSTOP of a crawler", "SIGSTOP of a crawler, later SIGCONT (0)", freeze, 0, 6),
        Act("broker_restarts", _BROKER, "kill -9 and start of Kafka (1)",
            outage("kafka"), 1, 8, (2, 6), "servers"),
        Act("elasticsearch_restarts", _ELASTICSEARCH, "likewise (1, with this sink)",
            outage("elasticsearch"), 1, 8, (2, 6), "elasticsearch"),
        Act("joins", "a run more", "runs that are added (0)", join, 0, 15),
        Act("hbase_restarts", _HBASE, "likewise (1, with this sink)", outage("hbase"), 1, 8, (2, 6), "hbase"),
        Act("elasticsearch_blocks", READ_ONLY, "its indices take no writes for seconds (0)",
            block, 0, 6, (2, 12), "elasticsearch"),
        Act("proxies", "a network that fails",
            "the way to a server delays, throttles, resets, refuses or swallows for seconds (0)",
            disturb, 0, 3, (3, 20), "servers"),
        Act("added_partitions", "a partition more", "one partition more of the topic (0)",
            add_partition, 0, 20, (0, 0), "servers", 20),
        Act("pauses", "pause of a task", "a task is paused, and resumed later (0)",
            pause, 0, 2, (3, 10), "tasks"),
        Act("cancels", "cancel of a task", "a task is cancelled (0)", cancel, 0, 6, (0, 0), "tasks"),
        Act("closes", "close of a task", "", close, needs="tasks"),
        Act("recreated_topics", "a topic created again", "a seed topic is deleted, created again (0)",
            recreate_topic, 0, 15, (0, 4), "servers", 20),
    )
}  # fmt: skip
