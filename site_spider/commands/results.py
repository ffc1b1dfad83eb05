"""`scrapy results`: reads results back from the configured store."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from site_spider.commands.output import add_format_option, print_json, print_table, show
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.commands.table import Column
from site_spider.contracts.reader import ResultReader, StatusFilter
from site_spider.escape import cut, escaped
from site_spider.service import plugins as parts

_STATUS, _URL, _ID = Column("STATUS"), Column("URL", shrinks=True), Column("URL_ID", optional=True)
_RESULTS = (_STATUS, Column("SIZE", right=True), Column("TYPE", optional=True), _URL, _ID)
_RESULT_FIELDS = ("status", "response_size", "content_type", "url", "url_id")
_FAILURES = (_STATUS, _URL, Column("DESCRIPTION", shrinks=True), _ID)
_FAILURE_FIELDS = ("status", "url", "description", "url_id")
_SHOWN_CHARACTERS = 300  # of a field, when one document is shown
_DEFAULT_LIMIT = 1000


class Command(SiteCommand):
    """Shows one document in full, or a row for each of many."""

    description = (
        "Reads results back from the first store of SITE_SINKS that can be read "
        "(local, Elasticsearch, HBase). "
        "The exit code is 1 if --url-id is not found."
    )
    examples = """
        scrapy results
        scrapy results --status none                  what did not answer, and why
        scrapy results --status 404 --task-id spring
        scrapy results --url-id 42 --format json
        scrapy results --limit 0 --format json        all of them, one JSON document a line
    """

    def syntax(self) -> str:
        """As Scrapy asks."""
        return "[options]"

    def short_desc(self) -> str:
        """As Scrapy asks."""
        return "Show results"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As Scrapy asks."""
        super().add_options(parser)
        parser.add_argument("--url-id", metavar="ID", help="only the document with this url_id")
        parser.add_argument(
            "--status", metavar="S", help="only this HTTP status; none: pages without an answer"
        )
        parser.add_argument("--task-id", metavar="T", help="only this task")
        parser.add_argument(
            "--limit",
            metavar="N",
            type=int,
            default=_DEFAULT_LIMIT,
            help=f"show at most N (default: {_DEFAULT_LIMIT}; 0: all)",
        )
        add_format_option(parser)

    def work(self, opts: argparse.Namespace) -> None:
        """Show. Raises SiteSpiderError."""
        status = self._status(opts.status)
        if opts.limit < 0:
            self.refuse(f"--limit is {opts.limit}, but must be 0 or more")
        with closing(parts.reader(self.options)) as reader:
            if opts.url_id is not None:
                self._show_one(reader, opts)
            else:
                self._show_many(reader, status, opts)

    def _status(self, text: str | None) -> StatusFilter:
        if text is None:
            return None
        if text in ("none", "failed"):
            return "none"
        if not text.isascii() or not text.isdigit():
            self.refuse(f"--status is {text!r}, but must be a number such as 404, or none")
        return int(text)

    def _show_one(self, reader: ResultReader, opts: argparse.Namespace) -> None:
        document = reader.get(opts.url_id)
        if document is None:
            self.complain(f"no result has the url_id {opts.url_id!r} in {reader.address}")
            self.exitcode = EXIT_FAILED
        elif opts.format == "json":
            print_json(document)
        else:
            for name, value in document.items():
                show(f"{name}: {_shown(value)}")

    def _show_many(self, reader: ResultReader, status: StatusFilter, opts: argparse.Namespace) -> None:
        limit = opts.limit or None
        found = reader.search(
            status, opts.task_id, limit and limit + 1
        )  # one more tells whether there is more
        shown = islice(found, limit)
        if opts.format == "json":
            for document in shown:
                print_json(document)
        else:
            _print_tables([_slim(document) for document in shown])
        if next(found, None) is not None:
            self.complain(f"there are more than these {limit}; --limit 0 shows all")


def _slim(document: dict[str, Any]) -> dict[str, Any]:
    """What the tables show of a document, without its body."""
    return {field: document.get(field) for field in {*_RESULT_FIELDS, *_FAILURE_FIELDS}}


def _print_tables(documents: Sequence[dict[str, Any]]) -> None:
    """What was fetched, and what failed: no answer, or one that says no."""
    failures = [document for document in documents if document["description"] is not None]
    results = [document for document in documents if document["description"] is None]
    print(f"Results: {len(results)}")
    if results:
        print_table(_RESULTS, _rows(results, _RESULT_FIELDS))
    print(f"\nFailures: {len(failures)}")
    if failures:
        print_table(_FAILURES, _rows(failures, _FAILURE_FIELDS))


def _rows(documents: Sequence[dict[str, Any]], fields: Sequence[str]) -> list[list[object]]:
    return [[document[field] for field in fields] for document in sorted(documents, key=_order)]


def _order(document: dict[str, Any]) -> tuple[int, str]:
    """By status, what did not answer first."""
    status = document["status"]
    return status if isinstance(status, int) else 0, str(document["url"])


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return cut(escaped(text[: _SHOWN_CHARACTERS + 1]), _SHOWN_CHARACTERS)
