"""What a change of rules would filter of the seeds that wait in the topics."""

from __future__ import annotations

import json
from collections.abc import Iterator

from site_spider.commands.tasks.verb import Call
from site_spider.contracts.seed_log import Message
from site_spider.errors import SeedError, TopicMissing
from site_spider.seed.seed import Seed, parse_seed
from site_spider.tasks.record import Task
from site_spider.tasks.rules import TaskRules

_SHOWN = 10


def preview(call: Call, task: Task) -> None:
    """Print how many seeds wait, and how many of them the changed task would filter."""
    rules, waiting, hits = TaskRules(task), 0, 0
    examples: list[str] = []
    for seed in waiting_seeds(call):
        waiting += 1
        if not rules.takes_seed(seed.url):
            hits += 1
            if len(examples) < _SHOWN:
                examples.append(seed.url)
    call.answer(
        f"would filter {hits} of {waiting} seeds that wait in {call.desk.topics.seeds} and "
        f"{call.desk.topics.parked}" + "".join(f"\n  {url}" for url in examples),
        waiting=waiting,
        would_filter=hits,
        examples=examples,
    )


def waiting_seeds(call: Call) -> Iterator[Seed]:
    """Seeds of the task that the group has not completed, and those that are parked."""
    group = call.command.options.get("SITE_CONSUMER_GROUP")
    topics, log = call.desk.topics, call.desk.log
    try:
        begun = {part.partition: part.committed for part in log.progress(topics.seeds, group)}
        for message in log.read(topics.seeds):
            position = begun.get(message.partition)
            if position is None or message.offset >= position.offset:
                yield from _seed(message, call.task_id)
    except TopicMissing:
        pass
    back = call.desk.board.returned(call.task_id).offsets
    try:
        for message in log.read(topics.parked):
            if message.offset >= back.get(str(message.partition.number), 0):
                yield from _seed(message, call.task_id)
    except TopicMissing:
        pass


def _seed(message: Message, task_id: str) -> Iterator[Seed]:
    if json.dumps(task_id, ensure_ascii=False).encode()[1:-1] not in (message.value or b""):
        return
    try:
        seed = parse_seed(message.value, needs_url=False)
    except SeedError:
        return
    if seed.task_id == task_id:
        yield seed
