"""`scrapy task`: declares tasks, shows them, and controls them while they run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing

from site_spider.commands.site_command import SiteCommand
from site_spider.commands.task_orders import Close, Notify, Set, Start, Wait
from site_spider.commands.task_verbs import Call, Cancel, Delete, List, PauseTask, Resume, Show, Verb
from site_spider.errors import SeedError
from site_spider.seed.fields import identifier
from site_spider.service import config as parts
from site_spider.tasks.desk import TaskDesk
from site_spider.tasks.follower import TaskTopics
from site_spider.tasks.record import BadTask

# --- verbs -----------------------------------------------------------------------------------------------
# All verbs of `scrapy task`; a new one is a module and a line here.


VERBS: Mapping[str, Verb] = {
    "start": Start(),
    "list": List(),
    "show": Show(),
    "set": Set(),
    "pause": PauseTask(),
    "resume": Resume(),
    "cancel": Cancel(),
    "close": Close(),
    "wait": Wait(),
    "notify": Notify(),
    "delete": Delete(),
}


_CHECK_SECONDS = 10.0


class Command(SiteCommand):
    """Writes a record of the task topic, which every process follows."""

    max_arguments = 60
    needs_spider = False
    description = (
        "Declares, shows and controls tasks. A task is all seeds with one meta.task_id. All processes of the "
        "crawl follow within two seconds. close: no more seeds of the task are produced, so it ends when all "
        "are complete. wait: returns at the end and prints its counts; the exit code is 0, 3 when the task "
        "was cancelled or has expired, 4 when a budget is spent. notify: sends the webhook of an end again. "
        "delete: removes all records of a task, and no results."
    )
    examples = """
        scrapy task start spring --weight 5 --max-pages 100000 --deny '/calendar/'
        scrapy task list
        scrapy task show spring --json
        scrapy task set spring weight=1 max_pages=200000
        scrapy task set spring deny=/calendar/ --dry-run
        scrapy task pause spring
        scrapy task resume spring
        scrapy task cancel spring
        scrapy task close spring; scrapy task wait spring && echo "all pages are there"
        scrapy task close spring --again          # seeds were produced after its end
        scrapy task notify spring                 # the receiver of the webhook was away
        scrapy task notify spring --secret        # what the receiver verifies signatures with
        scrapy task delete spring
    """

    def syntax(self) -> str:
        """As Scrapy asks."""
        return f"{'|'.join(VERBS)} [ID] [options]"

    def short_desc(self) -> str:
        """As Scrapy asks."""
        return "Declare, show and control tasks"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As Scrapy asks."""
        super().add_options(parser)
        parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")
        parser.add_argument("--new", action="store_true", help="accept an id that nobody knows yet")
        for verb in VERBS.values():
            verb.add_options(parser)

    def work(self, opts: argparse.Namespace) -> None:
        """Do what the verb says. Raises SiteSpiderError."""
        name, *words = opts.args or [""]
        verb = VERBS.get(name)
        if verb is None:
            self.refuse(f"unknown verb {name!r}: say one of {', '.join(VERBS)}")
        takes_id = " ID" in verb.usage
        if bool(words) < takes_id or len(words) > takes_id + verb.most_words:
            self.refuse(f"say: scrapy task {verb.usage}")
        task_id = _task_id(words[0]) if takes_id else ""
        topics = TaskTopics.read(self.options)
        with closing(parts.seed_log(self.options)) as log:
            log.check(_CHECK_SECONDS)
            verb.work(Call(self, TaskDesk(log, topics), task_id, opts))


def _task_id(text: str) -> str:
    try:
        return identifier("the task's id", text) or ""
    except SeedError as error:
        raise BadTask(error.reason) from None
