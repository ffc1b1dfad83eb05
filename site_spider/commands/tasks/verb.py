"""What a verb of `scrapy task` is."""

from __future__ import annotations

import argparse
from typing import Protocol

from site_spider.commands.output import print_json, show
from site_spider.commands.site_command import SiteCommand
from site_spider.tasks.desk import TaskDesk
from site_spider.tasks.overview import TaskFacts
from site_spider.tasks.record import BadTask


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

    def known(self, *, may_be_new: bool = True) -> TaskFacts:
        """The same of a task that somebody knows; with --new of any. Raises BadTask."""
        overview = self.desk.overview()
        if not overview.knows(self.task_id) and not (may_be_new and self.opts.new):
            hint = "; with --new the order also goes for a task that comes later" if may_be_new else ""
            raise BadTask(
                f"{self.task_id!r} is not known: it was never declared, closed, or produced with --task-id. "
                f"scrapy task list names those that were{hint}"
            )
        return overview.of(self.task_id)

    def going_on(self) -> TaskFacts:
        """The same of a task whose end was not told. Raises BadTask."""
        facts = self.known()
        if facts.is_ended:
            raise BadTask(
                f"{self.task_id!r} has ended ({facts.state}), and nothing changes that; more seeds of it, or "
                "scrapy task start, begin its next generation"
            )
        return facts

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
