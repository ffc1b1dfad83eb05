"""What `scrapy results` and `scrapy items` are: filters, a limit, one document or some."""

from __future__ import annotations

import argparse
import json
from abc import abstractmethod
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from itertools import islice
from typing import Any, cast

from site_spider.commands.output import add_format_option, add_limit_option, print_json, show
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.contracts.sink import ResultReader, StatusFilter
from site_spider.service import config as parts
from site_spider.text import cut, escaped

_SHOWN_CHARACTERS = 300  # of a field, when one document is shown

Documents = Iterable[dict[str, Any]]


class DocumentsCommand(SiteCommand):
    """Shows one document in full, or a row for each of many."""

    __module__ = "site_spider.commands"  # as that of SiteCommand: it is no command by itself

    spider_help = "only what this spider wrote"
    of_items = False
    missing = ""  # what is said of a key that is not there, which stands behind it

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        self.add_own_options(parser)
        parser.add_argument("--task-id", metavar="T", help="only this job")
        parser.add_argument("--host", metavar="H", help="only pages of this host")
        parser.add_argument("--url", metavar="U", help="only the page that was asked for under this URL")
        add_limit_option(parser, "show")
        add_format_option(parser)

    @abstractmethod
    def add_own_options(self, parser: argparse.ArgumentParser) -> None:
        """Among them the one for a single document, whose value is `key`."""

    @abstractmethod
    def print_tables(self, found: Documents) -> None:
        """Those that were found, for people."""

    def status(self, opts: argparse.Namespace) -> StatusFilter:  # noqa: ARG002 - for those that have one
        """Which documents are wanted by their status."""
        return None

    def work(self, opts: argparse.Namespace) -> None:
        status = self.status(opts)
        if opts.limit < 0:
            self.refuse(f"--limit is {opts.limit}, but must be 0 or more")
        given = {"spider": opts.spider, "host": opts.host and opts.host.lower(), "url": opts.url}
        fields = {name: value for name, value in given.items() if value is not None}
        with closing(parts.reader(self.options, of_items=self.of_items)) as reader:
            if opts.key is None:
                self._show_some(reader, status, fields, opts)
            elif (document := reader.get(opts.key)) is not None:
                _show_one(document, opts.format)
            else:
                self.complain(f"{self.missing} {opts.key!r} in {reader.address}")
                self.exitcode = EXIT_FAILED

    def _show_some(
        self,
        reader: ResultReader,
        status: StatusFilter,
        fields: Mapping[str, str],
        opts: argparse.Namespace,
    ) -> None:
        """Those that fit, up to the limit; on stderr, of how many."""
        limit = opts.limit or None
        # closed before the reader is, also when whoever reads the output leaves early
        search = reader.search(status, opts.task_id, limit and limit + 1, fields)
        with closing(cast("Generator[dict[str, Any]]", search)) as found:
            some = islice(found, limit)
            if opts.format == "json":
                for document in some:
                    print_json(document)
            else:
                self.print_tables(some)
            is_more = next(found, None) is not None
        if is_more:
            whole = reader.count(status, opts.task_id, fields)
            self.complain(f"shown are {limit} of {whole}; --limit 0 shows all")


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
