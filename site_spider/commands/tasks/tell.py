"""`scrapy task list` and `show`."""

from __future__ import annotations

import argparse
import json

from site_spider.commands.output import print_json, print_table, show
from site_spider.commands.table import Column
from site_spider.commands.tasks.verb import Call

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
