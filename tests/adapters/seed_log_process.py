"""Another process at a seed log, to be killed: run as a module, it prints a line for each event.

Arguments: `consume`, `close`, `close_late`, `produce` or `SIGNAL_MOMENT` (see both), the dotted path of the
seed log's class, its settings as JSON, topics with commas between, group (or what the values begin with).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from site_spider.adapters.kafka import client
from site_spider.adapters.kafka.assignment import KafkaAssignment
from site_spider.adapters.kafka.client import ClientClosing
from site_spider.contracts.seed_log import Partition, Position, SeedLog


class Printer:
    """A listener that tells the parent process."""

    def assigned(self, positions: Mapping[Partition, Position | None]) -> None:
        say("assigned", len(positions))

    def revoked(self, partitions: Sequence[Partition]) -> Mapping[Partition, Position]:
        say("revoked", len(partitions))
        return {}

    def lost(self, partitions: Sequence[Partition]) -> None:
        say("lost", len(partitions))

    def deleted(self, partition: Partition, first: int, beyond: int) -> None:
        pass

    def reached(self, partition: Partition, offset: int) -> None:
        pass


def say(what: str, count: int) -> None:
    print(what, count, flush=True)


def consume(log: SeedLog, topic: str, group: str) -> None:
    """SIGTERM: gives its partitions up and leaves, as a crawl does."""
    stops: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stops.append(number))
    consumer = log.consumer(tuple(topic.split(",")), group, Printer())
    while not stops:
        messages = consumer.poll(0.1, 100)
        for message in messages:
            say(f"at:{message.partition.topic}:{message.partition.number}", message.offset)
        if messages:
            say("taken", len(messages))
    consumer.close(for_good=True)


# moment of a rebalance -> the method, which call of it, and whether the signal comes before or after it
MOMENTS = {
    "joining": ("_subscribe", 1, "after"),
    "first_assigning": ("_on_assign", 1, "before"),
    "first_assigned": ("_on_assign", 1, "after"),
    "revoking": ("_on_revoke", 1, "before"),
    "revoked": ("_on_revoke", 1, "after"),
    "assigning": ("_on_assign", 2, "before"),
    "assigned": ("_on_assign", 2, "after"),
}
SIGNALS = {"dies": signal.SIGKILL, "stops": signal.SIGTERM, "stalls": signal.SIGSTOP}


def consume_until(number: int, moment: str, log: SeedLog, topic: str, group: str) -> None:
    """Consumes, and sends itself that signal at that moment."""
    name, which, when = MOMENTS[moment]
    method = getattr(KafkaAssignment, name)
    calls: list[str] = []

    def act(self: KafkaAssignment, *arguments: Any) -> None:
        calls.append(name)
        is_it = len(calls) == which
        if is_it and when == "before":
            os.kill(os.getpid(), number)
        method(self, *arguments)
        if is_it and when == "after":
            os.kill(os.getpid(), number)

    setattr(KafkaAssignment, name, act)
    consume(log, topic, group)


def close(log: SeedLog, topic: str, group: str) -> None:
    """Joins, is assigned partitions without being polled, and closes; a close that hangs does so for ever."""
    client._PATIENCE_SECONDS = 3600.0
    consumer = log.consumer((topic,), group, Printer())
    say("joined", 1)
    sys.stdin.readline()
    consumer.close()
    say("closed", 1)


def close_late(log: SeedLog, topic: str, group: str) -> None:
    """As if the assignment arrived when the client had begun to close."""
    ClientClosing._answer_rebalances = lambda _self: None  # type: ignore[method-assign]
    close(log, topic, group)


def produce(log: SeedLog, topic: str, name: str) -> None:
    producer = log.producer()
    number = 0
    while True:
        futures = [producer.send(topic, b"key", b"%s %d" % (name.encode(), number + i)) for i in range(100)]
        for future in futures:
            future.result()
        number += 100
        say("durable", number)


def start(work: str, log: str, settings: Mapping[str, Any], topic: str, group: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-m", __name__, work, log, json.dumps(settings), topic, group]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def process(*what: Any) -> Iterator[Process]:
    """Such a process, killed at the end."""
    with start(*what) as popen:
        try:
            yield Process(popen)
        finally:
            popen.kill()


class Process:
    """The parent's side."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen

    def wait_for(self, what: str) -> int:
        """The count of the next such event."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            event, count = line.split()
            if event == what:
                return int(count)
        raise AssertionError(f"the process ended without {what!r}")

    def kill(self) -> list[str]:
        """kill -9; returns what it still had said."""
        assert self.popen.stdout is not None
        self.popen.kill()
        return self.popen.stdout.read().splitlines()


def main() -> None:
    work, path, settings, topic, group = sys.argv[1:]
    module, _, name = path.rpartition(".")
    log = getattr(import_module(module), name).from_settings(json.loads(settings))
    works = {"consume": consume, "close": close, "close_late": close_late, "produce": produce}
    works |= {
        f"{what}_{moment}": partial(consume_until, number, moment)
        for what, number in SIGNALS.items()
        for moment in MOMENTS
    }
    works[work](log, topic, group)


if __name__ == "__main__":
    main()
