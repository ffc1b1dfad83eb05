"""`scrapy results`: reads results back from the configured store."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from site_spider.commands.output import (
    Column,
    DocumentFilters,
    add_filter_options,
    print_table,
    show_document,
    show_some,
)
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.contracts.sink import ResultReader, StatusFilter
from site_spider.service import config as parts

_STATUS, _URL, _ID = Column("STATUS"), Column("URL", shrinks=True), Column("URL_ID", optional=True)
_RESULTS = (_STATUS, Column("SIZE", right=True), Column("TYPE", optional=True), _URL, _ID)
_RESULT_FIELDS = ("status", "response_size", "content_type", "url", "url_id")
_FAILURES = (_STATUS, _URL, Column("DESCRIPTION", shrinks=True), _ID)
_FAILURE_FIELDS = ("status", "url", "description", "url_id")


class Command(SiteCommand):
    """Shows one document in full, or a row for each of many."""

    summary = "Show results"
    description = (
        "Reads results back from the first store of SITE_SINKS that can be read "
        "(local, Elasticsearch, HBase). "
        "The exit code is 1 if --url-id is not found."
    )
    spider_help = "only what this spider wrote"
    examples = """
        scrapy results
        scrapy results --status none                  what did not answer, and why
        scrapy results --status 404 --task-id spring
        scrapy results --url-id 42 --format json
        scrapy results --spider books --host example.com
        scrapy results --limit 0 --format json        all of them, one JSON document a line
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As Scrapy asks."""
        super().add_options(parser)
        parser.add_argument("--url-id", metavar="ID", help="only the document with this url_id")
        parser.add_argument(
            "--status", metavar="S", help="only this HTTP status; none: pages without an answer"
        )
        add_filter_options(parser)

    def work(self, opts: argparse.Namespace) -> None:
        """Show. Raises SiteSpiderError."""
        status = self._status(opts.status)
        filters = DocumentFilters.of(opts, self.refuse)
        with closing(parts.reader(self.options)) as reader:
            if opts.url_id is not None:
                self._show_one(reader, opts)
            else:
                show_some(reader, filters._replace(status=status), opts.format, _print_tables, self.complain)

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
        else:
            show_document(document, opts.format)


def _slim(document: dict[str, Any]) -> dict[str, Any]:
    """What the tables show of a document, without its body."""
    return {field: document.get(field) for field in {*_RESULT_FIELDS, *_FAILURE_FIELDS}}


def _print_tables(found: Iterable[dict[str, Any]]) -> None:
    """What was fetched, and what failed: no answer, or one that says no."""
    documents = [_slim(document) for document in found]
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
