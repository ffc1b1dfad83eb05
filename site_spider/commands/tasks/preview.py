"""What a change of rules would filter of the seeds that wait in the topics."""

from __future__ import annotations

from itertools import chain

from site_spider.commands.tasks.verb import Call
from site_spider.commands.tasks.waiting import in_parked_topic, in_seed_topic
from site_spider.tasks.record import Task, TaskRules

_SHOWN = 10


def preview(call: Call, task: Task) -> None:
    """Print how many seeds wait, and how many of them the changed task would filter."""
    desk = call.desk
    topics, group = desk.topics, str(call.command.options.get("SITE_CONSUMER_GROUP"))
    rules, waiting, hits = TaskRules(task), 0, 0
    examples: list[str] = []
    for seed in chain(
        *(in_seed_topic(desk.log, topic, group, call.task_id) for topic in topics.all_seeds),
        in_parked_topic(desk.log, topics, desk.board, call.task_id),
    ):
        waiting += 1
        if not rules.takes_seed(seed.url):
            hits += 1
            examples += [seed.url] if len(examples) < _SHOWN else []
    where = f"{', '.join(topics.all_seeds)} and {topics.parked}"
    call.answer(
        f"would filter {hits} of {waiting} seeds that wait in {where}",
        waiting=waiting,
        would_filter=hits,
        examples=examples,
    )
    if not call.opts.json:
        for url in examples:
            call.answer(f"  {url}")
