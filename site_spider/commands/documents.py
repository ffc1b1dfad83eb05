"""What `scrapy results` and `scrapy items` share: filters, a limit, one document or some."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple, NoReturn, Self, cast

from site_spider.commands.output import add_format_option, print_json, show
from site_spider.contracts.sink import ResultReader, StatusFilter
from site_spider.text import cut, escaped

SHOWN_CHARACTERS = 300  # of a field, when one document is shown
_DEFAULT_LIMIT = 1000

Documents = Iterable[dict[str, Any]]


def add_filter_options(parser: argparse.ArgumentParser) -> None:
    """The options --task-id, --host, --url, --limit and --format; --spider is every command's."""
    parser.add_argument("--task-id", metavar="T", help="only this job")
    parser.add_argument("--host", metavar="H", help="only pages of this host")
    parser.add_argument("--url", metavar="U", help="only the page that was asked for under this URL")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=int,
        default=_DEFAULT_LIMIT,
        help=f"show at most N (default: {_DEFAULT_LIMIT}; 0: all)",
    )
    add_format_option(parser)


class DocumentFilters(NamedTuple):
    """Which documents are wanted, and how many at most (None: all)."""

    status: StatusFilter
    task_id: str | None
    fields: Mapping[str, str]
    limit: int | None

    @classmethod
    def of(cls, opts: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> Self:
        """From the options of a command."""
        if opts.limit < 0:
            refuse(f"--limit is {opts.limit}, but must be 0 or more")
        given = {"spider": opts.spider, "host": opts.host and opts.host.lower(), "url": opts.url}
        fields = {name: value for name, value in given.items() if value is not None}
        return cls(None, opts.task_id, fields, opts.limit or None)

    def search(self, reader: ResultReader) -> Iterator[dict[str, Any]]:
        """One more than the limit, if there is one: it tells whether something is left out."""
        return reader.search(self.status, self.task_id, self.limit and self.limit + 1, self.fields)

    def count(self, reader: ResultReader) -> int:
        """How many there are."""
        return reader.count(self.status, self.task_id, self.fields)


def show_some(
    reader: ResultReader,
    filters: DocumentFilters,
    form: str,
    print_tables: Callable[[Documents], None],
    complain: Callable[[str], None],
) -> None:
    """Those that fit, up to the limit; on stderr, of how many."""
    # closed before the reader is, also when whoever reads the output leaves early
    with closing(cast("Generator[dict[str, Any]]", filters.search(reader))) as found:
        shown = islice(found, filters.limit)
        if form == "json":
            for document in shown:
                print_json(document)
        else:
            print_tables(shown)
        is_more = next(found, None) is not None
    if is_more:
        complain(f"shown are {filters.limit} of {filters.count(reader)}; --limit 0 shows all")


def show_document(document: Mapping[str, Any], form: str) -> None:
    """All of one."""
    if form == "json":
        print_json(document)
        return
    for name, value in document.items():
        show(f"{name}: {shown(value)}")


def shown(value: object) -> str:
    """A field as it stands in a table for people."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return cut(escaped(text[: SHOWN_CHARACTERS + 1]), SHOWN_CHARACTERS)
