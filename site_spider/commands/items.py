"""`scrapy items`: reads the items of spiders back from the configured store."""

from __future__ import annotations

import argparse
from typing import Any

from site_spider.commands.output import Column, print_counted
from site_spider.commands.results import Command as ResultsCommand
from site_spider.commands.results import Documents, shown
from site_spider.results.document import PAGE

_COLUMNS = (Column("ID", shrinks=True), Column("ITEM", shrinks=True), Column("PAGE", shrinks=True))


class Command(ResultsCommand):
    """Items in place of results, of any status."""

    summary = "Show items of spiders"
    description = (
        "Reads the items of spiders back from the first store of SITE_SINKS that can be read (local, "
        "Elasticsearch, HBase). Beside an item's own fields stand _id and _page. "
        "The exit code is 1 if --id is not found, or does not fit the other options."
    )
    examples = """
        scrapy items
        scrapy items --spider books --host example.com
        scrapy items --task-id spring --limit 0 --format json     all of them, one JSON document a line
        scrapy items --id 22bb88765517a75e4955e28a86afe1c29b082746-1
    """
    of_items = True
    missing = "no item has the _id"

    def add_own_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--id", dest="key", metavar="ID", help="the one item with this _id")
        parser.set_defaults(status=None)

    def rows(self, found: Documents) -> list[Any]:
        return [_row(item) for item in found]

    def print_tables(self, rows: list[Any], among: str) -> None:
        print_counted("Items", _COLUMNS, rows, among)


def _row(item: dict[str, Any]) -> list[object]:
    page = item.get(PAGE)
    own = {name: value for name, value in item.items() if name not in ("_id", PAGE)}
    return [item.get("_id"), shown(own), page.get("url") if isinstance(page, dict) else None]
