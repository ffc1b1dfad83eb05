"""Each partition has an owner that lives, whenever in a rebalance a process dies, stops or stands still.

A static member that is killed between its revocation and its next join, and is started again at once, gets
its old assignment without a rebalance: what it had given up would belong to nobody.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from site_spider.contracts.seed_log import Producer
from tests.adapters import seed_log_process
from tests.contracts.seed_logs import QUICK_KAFKA, make_kafka_topic

PARTITIONS = 4
PATIENCE_SECONDS = 240.0  # a busy machine needs more than the session timeout
SIDE_BY_SIDE = 3  # fleets


class Fleet:
    """Processes of one group, and who hands out what."""

    def __init__(self, brokers: str, producer: Producer, topics: tuple[str, ...]) -> None:
        self.group = f"group-{uuid.uuid4().hex}"
        self.topics = tuple(f"{name}-{uuid.uuid4().hex}" for name in topics)
        self._settings = {"SITE_KAFKA_BROKERS": brokers, "SITE_KAFKA_OPTIONS": QUICK_KAFKA}
        self._producer = producer
        self._lines: queue.Queue[tuple[int, str]] = queue.Queue()
        self._running: list[subprocess.Popen[str]] = []
        self._listeners: list[threading.Thread] = []
        for topic in self.topics:
            make_kafka_topic(brokers, topic, PARTITIONS)

    def start(self, work: str = "consume") -> subprocess.Popen[str]:
        """Another process."""
        log = "site_spider.adapters.kafka.seed_log.KafkaSeedLog"
        process = seed_log_process.start(work, log, self._settings, ",".join(self.topics), self.group)
        self._running.append(process)
        self._listeners.append(threading.Thread(target=self._listen, args=[process]))
        self._listeners[-1].start()
        return process

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._lines.put((process.pid, line))

    def wait_for(self, what: str, process: subprocess.Popen[str]) -> None:
        """For such a line of that process."""
        self._until(lambda pid, line: pid == process.pid and line.startswith(what), what)

    def everything_is_consumed(self) -> None:
        """Each partition's next message is handed out."""
        keys = [(topic, number) for topic in self.topics for number in range(PARTITIONS)]
        mark = uuid.uuid4().hex
        places = set()
        for topic, number in keys:
            # of each partition: keys are tried until all have one
            attempt = 0
            while (topic, number) not in {(one.partition.topic, one.partition.number) for one in places}:
                key = f"{mark}-{attempt}".encode()
                places.add(self._producer.send(topic, key, b"seed").result(300))
                attempt += 1
        waiting = {f"at:{one.partition.topic}:{one.partition.number} {one.offset}" for one in places}

        def taken(pid: int, line: str) -> bool:
            if pid in {process.pid for process in self._running if process.poll() is None}:
                waiting.discard(line.strip())
            return not waiting

        self._until(taken, waiting)

    def _until(self, found: Callable[[int, str], bool], what: object) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                pytest.fail(f"not within {PATIENCE_SECONDS} s: {what}")
            if found(*line):
                return

    def close(self) -> None:
        for process in self._running:
            assert process.stdin is not None
            process.stdin.close()
            process.kill()
            process.wait()
        for listener in self._listeners:
            listener.join()


Fleets = Callable[..., Fleet]
Story = Callable[[Fleet, str], None]


@pytest.fixture
def fleets(kafka_brokers: str, kafka_producer: Producer, lock_folder: None) -> Iterator[Fleets]:
    made: list[Fleet] = []

    def make(*topics: str) -> Fleet:
        made.append(Fleet(kafka_brokers, kafka_producer, topics or ("seeds",)))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


def ends_as_another_joins(
    fleet: Fleet, moment: str, how: str = "dies", starts: int = 1, *, kills_the_other: bool = False
) -> None:
    """Its supervisor starts it again at once; with more starts others join, or are started again, as well."""
    ending = fleet.start(f"{how}_{moment}")
    fleet.wait_for("assigned", ending)
    joining = fleet.start()
    ending.wait(PATIENCE_SECONDS)
    if kills_the_other:
        joining.kill()
    for _ in range(starts):
        fleet.start()


def dies_as_it_joins(fleet: Fleet, moment: str) -> None:
    """As do all that are started again while the others let go."""
    fleet.wait_for("assigned", fleet.start())
    fleet.start(f"dies_{moment}").wait(PATIENCE_SECONDS)
    fleet.start()


def stalls_as_another_joins(fleet: Fleet, moment: str) -> None:
    """SIGSTOP until the group has gone on without it."""
    stalling = fleet.start(f"stalls_{moment}")
    fleet.wait_for("assigned", stalling)
    fleet.start()
    fleet.everything_is_consumed()
    stalling.send_signal(signal.SIGCONT)


both_die = partial(ends_as_another_joins, starts=2, kills_the_other=True)
one_of_three_dies = partial(ends_as_another_joins, starts=2)
dies_and_stays_away = partial(ends_as_another_joins, starts=0)  # the group waits for the session timeout
stops_as_another_joins = partial(ends_as_another_joins, how="stops", starts=0)
STORIES: list[tuple[Story, str]] = [
    *((ends_as_another_joins, moment) for moment in ("revoking", "revoked", "assigning", "assigned")),
    *((dies_as_it_joins, moment) for moment in ("joining", "first_assigning", "first_assigned")),
    *((both_die, moment) for moment in ("revoking", "revoked", "assigned")),
    *((one_of_three_dies, moment) for moment in ("revoked", "assigned")),
    *((dies_and_stays_away, moment) for moment in ("revoked", "assigning")),
    *((stops_as_another_joins, moment) for moment in ("revoking", "revoked", "assigned")),
    *((stalls_as_another_joins, moment) for moment in ("revoking", "revoked", "assigned")),
]


ONE_TIER, THREE_TIERS = ("seeds",), ("urgent", "seeds", "bulk")


def run(fleets: Fleets, *stories: tuple[Story, str, tuple[str, ...]]) -> None:
    """Some of them side by side."""

    def story(happens: Story, moment: str, topics: tuple[str, ...]) -> None:
        fleet = fleets(*topics)
        happens(fleet, moment)
        fleet.everything_is_consumed()

    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        for ended in [pool.submit(story, *told) for told in stories]:
            ended.result()


@pytest.mark.servers
def test_each_partition_has_an_owner_after_a_death_in_a_rebalance(fleets: Fleets) -> None:
    """The worst moment, in three tiers and one; the simulator has the other interleavings."""
    moment = "revoked"
    run(fleets, (ends_as_another_joins, moment, THREE_TIERS), (stalls_as_another_joins, moment, ONE_TIER))


@pytest.mark.servers
@pytest.mark.nightly
def test_whatever_happens_in_a_rebalance_each_partition_has_an_owner(fleets: Fleets) -> None:
    run(fleets, *((*told, ONE_TIER) for told in STORIES), *((*told, THREE_TIERS) for told in STORIES[:8:2]))
