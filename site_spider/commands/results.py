"""`scrapy results`: reads results back from the configured store."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Any

from site_spider.commands.output import Column, add_format_option, add_limit_option, print_counted, print_json, show
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.contracts.sink import ANY, Fields, ResultReader, StatusFilter
from site_spider.errors import ConfigError
from site_spider.page.url import beginnings_of
from site_spider.results.document import PAGE, result_fields
from site_spider.service import config as parts
from site_spider.text import cut, escaped

_SHOWN_CHARACTERS = 300  # of a field, when one document is shown
_STATUS, _URL, _ID = Column("STATUS"), Column("URL", shrinks=True), Column("URL_ID", optional=True)
_RESULTS = (_STATUS, Column("SIZE", right=True), Column("TYPE", optional=True), _URL, _ID)
_RESULT_FIELDS = ("status", "response_size", "content_type", "url", "url_id")
_FAILURES = (_STATUS, _URL, Column("DESCRIPTION", shrinks=True), _ID)
_FAILURE_FIELDS = ("status", "url", "description", "url_id")

Documents = Iterable[dict[str, Any]]


class Command(SiteCommand):
    """Shows one document in full, or a row for each of many: what was fetched, and what failed."""

    summary = "Show results"
    description = (
        "Reads results back from the first store of SITE_SINKS that can be read "
        "(local, Elasticsearch, HBase). "
        "The exit code is 1 if --url-id is not found, or does not fit the other options."
    )
    examples = """
        scrapy results
        scrapy results --status none                  what did not answer, and why
        scrapy results --status 404 --task-id spring
        scrapy results --url-id 42 --format json
        scrapy results --spider books --host example.com
        scrapy results --limit 0 --format json        all of them, one JSON document a line
    """
    spider_help = "only what this spider wrote (default: all)"
    of_items = False
    missing = "no result has the url_id"  # the one that was asked for stands behind it

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        self.add_own_options(parser)
        parser.add_argument("--task-id", metavar="ID", help="only this task")
        parser.add_argument("--host", metavar="H", type="host", help="only pages of this host")
        parser.add_argument("--url", metavar="U", help="only the page that was asked for under this URL")
        add_limit_option(parser, "show")
        add_format_option(parser)

    def add_own_options(self, parser: argparse.ArgumentParser) -> None:
        """Among them the one for a single document, whose value is `key`."""
        parser.add_argument("--url-id", dest="key", metavar="ID", help="only the document with this url_id")
        parser.add_argument("--status", metavar="S", help="only this HTTP status; none: pages without an answer")

    def work(self, opts: argparse.Namespace) -> None:
        status = self._status(opts)
        fields = self._filters(opts)
        with closing(parts.reader(self.options, of_items=self.of_items)) as reader:
            if opts.key is None:
                self._show_some(reader, status, fields, opts)
            elif (document := reader.get(opts.key)) is None:
                self._miss(f"{self.missing} {opts.key!r} in {reader.address}")
            elif self._fits(document, status, fields):
                _show_one(document, opts.format)
            else:
                self._miss(f"the document {opts.key!r} in {reader.address} does not fit the other options")

    def _miss(self, said: str) -> None:
        self.complain(said)
        self.exitcode = EXIT_FAILED

    def _fits(self, document: Mapping[str, Any], status: StatusFilter, fields: Fields) -> bool:
        """As the store compares. Items have no status, and no field for the host of their page."""
        page = document.get(PAGE) if self.of_items else document
        if not isinstance(page, Mapping):
            return not fields
        wanted = None if status == "none" else status
        if status is not None and page.get(self.names.get("status", "status")) != wanted:
            return False
        begins = str(page.get("url")).startswith
        return all(
            begins(tuple(beginnings_of(value))) if self.of_items and name == "host" else page.get(name) == value
            for name, value in fields.items()
        )

    def _status(self, opts: argparse.Namespace) -> StatusFilter:
        if opts.status is None:
            return None
        if opts.status in ("none", "failed"):
            return "none"
        if not re.fullmatch("[0-9]{1,3}", opts.status):
            self.refuse(f"--status is {opts.status!r}, but must be a number such as 404, or none")
        return int(opts.status)

    def _filters(self, opts: argparse.Namespace) -> dict[str, str]:
        """By the names that fields have in the store. Raises ConfigError."""
        given = {"task_id": opts.task_id, "spider": opts.spider, "host": opts.host, "url": opts.url}
        asked = {name: value for name, value in given.items() if value is not None}
        if (names := self.names) and (missing := next((name for name in asked if name not in names), None)):
            raise ConfigError(f"SITE_RESULT_FIELDS leaves out {missing!r}: results cannot be filtered by it.")
        return {names.get(name, name): value for name, value in asked.items()}

    @property
    def names(self) -> Fields:
        return ANY if self.of_items else result_fields(self.options)

    def _show_some(self, reader: ResultReader, status: StatusFilter, fields: Fields, opts: argparse.Namespace) -> None:
        """Show documents that fit, up to the limit, and on stderr how many there are."""
        limit = opts.limit or None
        # closed before the reader is, also when whoever reads the output leaves early
        with closing(reader.search(status, fields, limit=limit and limit + 1)) as found:
            some = islice(found, limit)
            number = 0
            if opts.format == "json":
                for number, document in enumerate(some, 1):  # noqa: B007 - counted
                    print_json(document)
            else:
                number = len(rows := self.rows(some))
            is_more = next(found, None) is not None
        whole = reader.count(status, fields) if is_more else number
        if opts.format == "table":
            self.print_tables(rows, f" among the first {limit} of {whole:,} documents" if is_more else "")
        if is_more:
            self.complain(f"shown are {limit} of {whole}; --limit 0 shows all")
        elif not number:
            self.complain(f"nothing was found in {reader.address}")

    def rows(self, found: Documents) -> list[Any]:
        """What the tables show of those that were found: bodies are not kept."""
        fields = {field: self.names.get(field, field) for field in (*_RESULT_FIELDS, *_FAILURE_FIELDS)}
        return [{field: each.get(name) for field, name in fields.items()} for each in found]

    def print_tables(self, rows: list[Any], among: str) -> None:
        """For people; `among` stands behind each number of rows. What failed has no answer, or one that says no."""
        failures = [document for document in rows if document["description"] is not None]
        results = [document for document in rows if document["description"] is None]
        print_counted("Results", _RESULTS, _rows(results, _RESULT_FIELDS), among)
        print()
        print_counted("Failures", _FAILURES, _rows(failures, _FAILURE_FIELDS), among)


def _show_one(document: Mapping[str, Any], form: str) -> None:
    if form == "json":
        print_json(document)
        return
    for name, value in document.items():
        show(f"{name}: {shown(value)}")


def shown(value: object) -> str:
    """A field as it stands in a table for people."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return cut(escaped(text[: _SHOWN_CHARACTERS + 1]), _SHOWN_CHARACTERS)


def _rows(documents: Sequence[dict[str, Any]], fields: Sequence[str]) -> list[list[object]]:
    return [[document[field] for field in fields] for document in sorted(documents, key=_order)]


def _order(document: dict[str, Any]) -> tuple[int, str]:
    """By status, what did not answer first."""
    status = document["status"]
    return status if isinstance(status, int) else 0, str(document["url"])
