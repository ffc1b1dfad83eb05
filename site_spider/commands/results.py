"""`scrapy results`: reads results back from the configured store."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from site_spider.commands.documents import Documents, DocumentsCommand
from site_spider.commands.output import Column, print_table
from site_spider.contracts.sink import StatusFilter

_STATUS, _URL, _ID = Column("STATUS"), Column("URL", shrinks=True), Column("URL_ID", optional=True)
_RESULTS = (_STATUS, Column("SIZE", right=True), Column("TYPE", optional=True), _URL, _ID)
_RESULT_FIELDS = ("status", "response_size", "content_type", "url", "url_id")
_FAILURES = (_STATUS, _URL, Column("DESCRIPTION", shrinks=True), _ID)
_FAILURE_FIELDS = ("status", "url", "description", "url_id")


class Command(DocumentsCommand):
    """Pages: what was fetched, and what failed."""

    summary = "Show results"
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
        scrapy results --spider books --host example.com
        scrapy results --limit 0 --format json        all of them, one JSON document a line
    """
    missing = "no result has the url_id"

    def add_own_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--url-id", dest="key", metavar="ID", help="only the document with this url_id")
        parser.add_argument(
            "--status", metavar="S", help="only this HTTP status; none: pages without an answer"
        )

    def status(self, opts: argparse.Namespace) -> StatusFilter:
        if opts.status is None:
            return None
        if opts.status in ("none", "failed"):
            return "none"
        if not opts.status.isascii() or not opts.status.isdigit():
            self.refuse(f"--status is {opts.status!r}, but must be a number such as 404, or none")
        return int(opts.status)

    def print_tables(self, found: Documents) -> None:
        """What failed has no answer, or one that says no. Bodies are not kept."""
        fields = {*_RESULT_FIELDS, *_FAILURE_FIELDS}
        documents = [{field: each.get(field) for field in fields} for each in found]
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
