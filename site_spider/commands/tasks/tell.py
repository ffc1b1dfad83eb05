"""`scrapy task list` and `show`."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from site_spider.commands.output import print_json, print_table, show
from site_spider.commands.table import Column
from site_spider.commands.tasks.verb import Call
from site_spider.tasks.board import Board
from site_spider.tasks.closing import read_endings
from site_spider.tasks.control_log import Endings
from site_spider.tasks.record import BadTask

_LIST = (Column("TASK", shrinks=True), Column("STATE"), Column("REASON", optional=True),
         Column("WEIGHT", right=True), Column("PAGES", right=True), Column("SEEDS", right=True),
         Column("PARKED", right=True))  # fmt: skip
_FIELDS = (Column("FIELD"), Column("VALUE", shrinks=True))
_TRAPS = (Column("PATTERN", shrinks=True), Column("PAGES", right=True), Column("TEXTS", right=True))


class List:
    """All tasks that were declared."""

    usage = "list"
    most_words = 0

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As in Verb: none."""

    def work(self, call: Call) -> None:
        """As in Verb."""
        documents = _documents(call, sorted(task.task_id for task in call.desk.board))
        if call.opts.json:
            for each in documents:
                print_json(each)
            return
        rows = [
            [each["task_id"], each["state"], each["reason"] or None, each["weight"], each["pages"],
             sum(each["seeds"].values()), each["parked"]]
            for each in documents
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
        if call.desk.board.task(call.task_id) is None:
            raise BadTask(f"{call.task_id!r} was never declared; scrapy task list names those that were")
        [found] = _documents(call, [call.task_id])
        if call.opts.json:
            print_json(found)
            return
        traps = found.pop("traps")
        said = {name: value for name, value in found.items() if value not in (None, "", [], {})}
        print_table(_FIELDS, [(name, _text(value)) for name, value in said.items()])
        if traps:
            print()
            show("Paths with many pages and few different texts:")
            print_table(_TRAPS, [(trap["pattern"], trap["pages"], trap["texts"]) for trap in traps])


def _documents(call: Call, task_ids: Sequence[str]) -> list[dict[str, Any]]:
    """A task that runs, as far as the board says, and whose end was told is done."""
    documents = [document(call.desk.board, task_id) for task_id in task_ids]
    endings = read_endings(call.desk.log, call.desk.topics) if documents else Endings()
    for each in documents:
        ending = endings.get(each["task_id"])
        if each["state"] == "running" and ending is not None and ending.is_told:
            each["state"] = "done"
    return documents


def document(board: Board, task_id: str) -> dict[str, Any]:
    """All that the board says of a task, for programs."""
    task, used = board.task(task_id), board.used(task_id)
    phase = board.phase(task_id, time.time())
    declared = {} if task is None else task.model_dump(mode="json")
    waiting = used.waiting - sum(board.returned(task_id).parked.values())
    return {
        **declared,
        "task_id": task_id,
        "state": phase.name,
        "reason": phase.reason,
        "pages": used.pages,
        "pages_begun": used.begun,
        "bytes": used.bytes,
        "seeds": used.seeds,
        "parked": max(0, waiting),
        "links_filtered": used.links_filtered,
        "links_cancelled": used.links_cancelled,
        "traps": [trap.model_dump() for trap in used.traps],
    }


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
