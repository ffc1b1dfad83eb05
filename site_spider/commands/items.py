"""`scrapy items`: reads the items of spiders back from the configured store."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from site_spider.commands.output import (
    Column,
    DocumentFilters,
    Documents,
    add_filter_options,
    print_table,
    show_document,
    show_some,
    shown,
)
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.results.document import PAGE
from site_spider.service import config as parts

_COLUMNS = (Column("ID", shrinks=True), Column("ITEM", shrinks=True), Column("PAGE", shrinks=True))


class Command(SiteCommand):
    """Shows one item in full, or a row for each of many."""

    summary = "Show items of spiders"
    description = (
        "Reads the items of spiders back from the first store of SITE_SINKS that can be read (local, "
        "Elasticsearch, HBase). Beside an item's own fields stand _id and _page. "
        "The exit code is 1 if --id is not found."
    )
    spider_help = "only what this spider wrote"
    examples = """
        scrapy items
        scrapy items --spider books --host example.com
        scrapy items --task-id spring --limit 0 --format json     all of them, one JSON document a line
        scrapy items --id 22bb88765517a75e4955e28a86afe1c29b082746-1
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As Scrapy asks."""
        super().add_options(parser)
        parser.add_argument("--id", metavar="ID", help="the one item with this _id")
        add_filter_options(parser)

    def work(self, opts: argparse.Namespace) -> None:
        """Show. Raises SiteSpiderError."""
        filters = DocumentFilters.of(opts, self.refuse)
        with closing(parts.reader(self.options, of_items=True)) as reader:
            if opts.id is None:
                show_some(reader, filters, opts.format, _print_table, self.complain)
            elif (item := reader.get(opts.id)) is not None:
                show_document(item, opts.format)
            else:
                self.complain(f"no item has the _id {opts.id!r} in {reader.address}")
                self.exitcode = EXIT_FAILED


def _print_table(found: Documents) -> None:
    rows = [_row(item) for item in found]
    print(f"Items: {len(rows)}")
    if rows:
        print_table(_COLUMNS, rows)


def _row(item: dict[str, Any]) -> list[object]:
    page = item.get(PAGE)
    own = {name: value for name, value in item.items() if name not in ("_id", PAGE)}
    return [item.get("_id"), shown(own), page.get("url") if isinstance(page, dict) else None]
