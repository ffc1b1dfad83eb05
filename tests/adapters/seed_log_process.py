"""Another process at a seed log, to be killed: run as a module, it prints a line for each event.

Arguments: `consume`, `close`, `close_late` or `produce`, the dotted path of the seed log's class, its
settings as JSON, topic, group (or what the values begin with).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from site_spider.adapters.kafka.closing import ClientClosing
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
    consumer = log.consumer(topic, group, Printer())
    while True:
        if messages := consumer.poll(0.1, 100):
            say("taken", len(messages))


def close(log: SeedLog, topic: str, group: str) -> None:
    """Joins, is assigned partitions without being polled, and closes."""
    consumer = log.consumer(topic, group, Printer())
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


@contextmanager
def process(work: str, log: str, settings: Mapping[str, Any], topic: str, group: str) -> Iterator[Process]:
    """Such a process, killed at the end."""
    arguments = [sys.executable, "-m", __name__, work, log, json.dumps(settings), topic, group]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as popen:
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
    {"consume": consume, "close": close, "close_late": close_late, "produce": produce}[work](
        log, topic, group
    )


if __name__ == "__main__":
    main()
