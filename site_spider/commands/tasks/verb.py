"""What a verb of `scrapy task` is."""

from __future__ import annotations

import argparse
from typing import Protocol

from site_spider.commands.output import print_json, show
from site_spider.commands.site_command import SiteCommand
from site_spider.tasks.desk import TaskDesk, TaskFacts, TaskOrders


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
