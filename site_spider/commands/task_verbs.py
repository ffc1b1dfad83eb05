"""What a verb of `scrapy task` is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import chain
from typing import Protocol

from site_spider import runtime
from site_spider.commands.output import Column, print_json, print_table, show
from site_spider.commands.site_command import SiteCommand
from site_spider.contracts.seed_log import Message, Partition, Position, SeedLog
from site_spider.errors import TopicMissing
from site_spider.ledger import metadata as commit_metadata
from site_spider.seed.seed import Seed
from site_spider.tasks.board import Board
from site_spider.tasks.control_log import seed_of
from site_spider.tasks.desk import TaskDesk, TaskFacts, TaskOrders
from site_spider.tasks.follower import TaskTopics
from site_spider.tasks.record import BadTask, Task, TaskRules


class Call:
    """One call of a verb."""

    def __init__(self, command: SiteCommand, desk: TaskDesk, task_id: str, opts: argparse.Namespace) -> None:
        self.command = command
        self.desk = desk
        self.task_id = task_id  # empty for a verb that takes none
        self.words: list[str] = opts.args[2:]
        self.opts = opts

    def facts(self) -> TaskFacts:
        """What is known of the task now."""
        return self.desk.overview().of(self.task_id)

    @property
    def orders(self) -> TaskOrders:
        """What can be ordered of the task; with --new of any."""
        return TaskOrders(self.desk, self.task_id, may_be_new=self.opts.new)

    def known(self, *, may_be_new: bool = True) -> TaskFacts:
        """What is known of a task that somebody knows; with --new of any. Raises BadTask."""
        return self.orders.known(may_be_new=may_be_new)

    def answer(self, line: str, **fields: object) -> None:
        """One line for people, or with --json one object for programs."""
        if self.opts.json:
            print_json({"task_id": self.task_id, **fields})
        else:
            show(line)


class Verb(Protocol):
    """Its module registers it in `verbs.VERBS`."""

    usage: str  # what stands behind `scrapy task`
    most_words: int  # behind the task's id

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """The options that it has alone."""

    def work(self, call: Call) -> None:
        """Raises SiteSpiderError."""


# --- tell ------------------------------------------------------------------------------------------------
# `scrapy task list` and `show`.


_LIST = (Column("TASK", shrinks=True), Column("STATE"), Column("REASON", optional=True),
         Column("WEIGHT", right=True), Column("PAGES", right=True), Column("SEEDS", right=True),
         Column("PARKED", right=True))  # fmt: skip
_FIELDS = (Column("FIELD"), Column("VALUE", shrinks=True))


class List:
    """All tasks that somebody declared, closed or began to produce."""

    usage = "list"
    most_words = 0

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As in Verb: none."""

    def work(self, call: Call) -> None:
        """As in Verb."""
        tasks = list(call.desk.overview())
        if call.opts.json:
            for each in tasks:
                print_json(each.document())
            return
        rows = [
            [each.task_id, each.state, each.reason or ("partial" if each.is_partial else None),
             each.weight, each.pages, sum(each.seeds.values()), each.parked]
            for each in tasks
        ]  # fmt: skip
        show(f"Tasks in {call.desk.topics.tasks}: {len(rows)}")
        if rows:
            print_table(_LIST, rows)


class Show:
    """One task, with what was done for it."""

    usage = "show ID"
    most_words = 0

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As in Verb: none."""

    def work(self, call: Call) -> None:
        """As in Verb."""
        found = call.known(may_be_new=False).document()
        if call.opts.json:
            print_json(found)
            return
        said = {name: value for name, value in found.items() if value not in (None, "", [], {})}
        print_table(_FIELDS, [(name, _text(value)) for name, value in said.items()])


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# --- control ---------------------------------------------------------------------------------------------
# `scrapy task pause`, `resume`, `cancel` and `delete`.


_SETTLE_SECONDS = 2.0  # without news, then the totals are printed
_LONGEST_SECONDS = 15.0
_LOOK_SECONDS = 0.2


class _StateVerb:
    """A verb without words of its own."""

    most_words = 0

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As in Verb: none."""


class PauseTask(_StateVerb):
    """Nothing of the task begins any more."""

    usage = "pause ID"

    def work(self, call: Call) -> None:
        """As in Verb."""
        ordered = call.orders.pause()
        call.answer(ordered.said, state="paused")


class Resume(_StateVerb):
    """What was parked comes back."""

    usage = "resume ID"

    def work(self, call: Call) -> None:
        """As in Verb."""
        ordered = call.orders.resume()
        call.answer(
            ordered.said,
            state=ordered.phase.name,
            reason=ordered.phase.reason,
            returned=ordered.returned,
        )


class Cancel(_StateVerb):
    """What has not begun ends."""

    usage = "cancel ID"

    def work(self, call: Call) -> None:
        """As in Verb: prints the totals when they change no more."""
        back = call.orders.cancel().returned
        facts = _settled(call)
        call.answer(
            f"task {call.task_id} is cancelled; {facts.said()}; links cancelled: {facts.links_cancelled}; "
            f"{back} parked messages put back",
            state="cancelled",
            returned=back,
            seeds=dict(facts.seeds),
            moved=dict(facts.moved),
            partial=facts.is_partial,
            links_cancelled=facts.links_cancelled,
            pages=facts.pages,
            bytes=facts.bytes,
        )


class Delete(_StateVerb):
    """Nothing is known of the task any more."""

    usage = "delete ID"

    def work(self, call: Call) -> None:
        """As in Verb. Results stay; seeds that wait have the settings of the crawl."""
        facts = call.known(may_be_new=False)
        if facts.parked:
            raise BadTask(
                f"{facts.parked} messages of {call.task_id!r} are parked; resume or cancel it first"
            )
        if not facts.is_ended and (facts.is_closed or facts.is_over):
            raise BadTask(f"{call.task_id!r} is about to end; say first: scrapy task wait {call.task_id}")
        call.desk.forget(call.task_id)
        call.answer(f"task {call.task_id} is deleted", deleted=True)


def _settled(call: Call) -> TaskFacts:
    """What is known, once the processes have told nothing new for a while."""
    deadline = runtime.monotonic() + _LONGEST_SECONDS
    last, since = call.facts(), runtime.monotonic()
    while runtime.monotonic() < min(deadline, since + _SETTLE_SECONDS) and not last.is_ended:
        runtime.sleep(_LOOK_SECONDS)
        call.desk.read()
        if (now := call.facts()) != last:
            last, since = now, runtime.monotonic()
    return last


# --- waiting ---------------------------------------------------------------------------------------------
# The seeds of a task that wait in the topics, by reading these.


def in_seed_topic(log: SeedLog, topic: str, group: str, task_id: str) -> Iterator[Seed]:
    """Those that the group has not completed, as far as it has committed. Raises LogUnavailable."""
    try:
        committed = {part.partition: part.committed for part in log.progress(topic, group)}
        messages = log.read(topic)
    except TopicMissing:
        return
    done = {partition: _done(position) for partition, position in committed.items() if position is not None}
    for message in messages:
        if not _is_done(message, committed.get(message.partition), done):
            yield from _one(seed_of(message, task_id))


def in_parked_topic(log: SeedLog, topics: TaskTopics, board: Board, task_id: str) -> Iterator[Seed]:
    """Those that were not put back. Raises LogUnavailable."""
    offsets = board.returned(task_id).offsets
    try:
        messages = log.read(topics.parked)
    except TopicMissing:
        return
    for message in messages:
        if message.offset >= offsets.get(str(message.partition.number), 0):
            yield from _one(seed_of(message, task_id))


def _one(seed: Seed | None) -> Iterator[Seed]:
    if seed is not None:
        yield seed


def _done(position: Position) -> list[tuple[int, int]]:
    return list(commit_metadata.decode(*position).complete)


def _is_done(
    message: Message, position: Position | None, done: dict[Partition, list[tuple[int, int]]]
) -> bool:
    if position is None:
        return False
    ahead = done[message.partition]
    while ahead and ahead[0][1] <= message.offset:  # offsets ascend in a partition
        ahead.pop(0)
    return message.offset < position.offset or (bool(ahead) and ahead[0][0] <= message.offset)


# --- preview ---------------------------------------------------------------------------------------------
# What a change of rules would filter of the seeds that wait in the topics.


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
