"""`scrapy source`: lists the sources, and shows what one would follow and extract."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import Response
from twisted.python.failure import Failure

from site_spider import options
from site_spider.commands.output import Column, add_format_option, print_counted, print_json, print_table, show
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.errors import SiteSpiderError
from site_spider.page.url import check_url, host_of
from site_spider.results.document import describe_status
from site_spider.results.failures import describe_exception
from site_spider.sources.extraction import NEXT_PAGE, Extracted, FoundLink
from site_spider.sources.extraction_process import Extractor, PageBody
from site_spider.sources.library import BadSource, Library, read_source, source_files
from site_spider.sources.model import Source
from site_spider.text import plural

_SHOWN = 50  # links in a table
_LARGEST_PAGE_BYTES = 20_000_000
_LIST = (Column("NAME"), Column("ENABLED"), Column("HOSTS", shrinks=True), Column("ITEMS", right=True),
         Column("FILE", shrinks=True), Column("DESCRIPTION", shrinks=True, optional=True))  # fmt: skip
_LINKS = (Column("LINK", shrinks=True), Column("BY"), Column("TO"))
_FIELDS = (Column("ITEM", right=True), Column("FIELD"), Column("VALUE", shrinks=True))


class Command(SiteCommand):
    """Changes nothing: no seed is taken, and nothing is written."""

    max_arguments = 3
    takes_files = True
    usage = "list | check FILE [URL or saved page] [options]"
    summary = "List sources, or check what one follows and extracts"
    description = (
        "list: the sources of SITE_SOURCES_DIR; check FILE: each mistake of a source file with its line, and "
        "what would be followed and extracted from the page. The URL of a saved page is --url, or one of the "
        "source's first host. check FILE --url URL fetches the URL. "
        "The exit code is 1 if a file cannot be used, or nothing can be extracted from the page."
    )
    examples = """
        scrapy source list
        scrapy source check docs/examples/sources/books.yaml
        scrapy source check docs/examples/sources/books.yaml https://books.example/catalogue/
        scrapy source check docs/examples/sources/books.yaml saved.html --url https://books.example/catalogue/a_1/
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--url", metavar="URL", help="the URL of the saved page; without a page, the URL to fetch")
        add_format_option(parser)

    def work(self, opts: argparse.Namespace) -> None:
        what, *rest = opts.args or ["list"]
        if what == "list" and not rest and opts.url is None:
            self._list(as_json=opts.format == "json")
        elif what == "check" and len(rest) > 1 and "://" in rest[1] and opts.url:
            self.refuse("--url names the URL of a saved page, but the page is a URL already")
        elif what == "check" and rest:
            self._check(Path(rest[0]), rest[1] if len(rest) > 1 else None, opts)
        else:
            self.refuse("use it as: scrapy source list, or scrapy source check FILE [URL or saved page]")

    # --- list -----------------------------------------------------------------------------------

    def _list(self, *, as_json: bool) -> None:
        folder = Path(options.text(self.options, "SITE_SOURCES_DIR", required=True))
        found = list(self._read(folder))
        if as_json:
            for path, source in found:
                _print_source(path, source)
        else:
            print_counted(f"Sources in {folder}", _LIST, [_row(path, source) for path, source in found])

    def _read(self, folder: Path) -> Iterator[tuple[Path, Source]]:
        try:
            paths = source_files(folder) if folder.is_dir() else []
        except OSError as error:
            raise SiteSpiderError(f"{folder} cannot be listed: {error.strerror or error}") from None
        for path in paths:
            try:
                yield path, read_source(path)
            except BadSource as bad:
                self._complain_of(bad)

    def _complain_of(self, bad: BadSource) -> None:
        for line in str(bad).splitlines():
            self.complain(line)
        self.exitcode = EXIT_FAILED

    # --- check ----------------------------------------------------------------------------------

    def _check(self, file: Path, page: str | None, opts: argparse.Namespace) -> None:
        try:
            source = read_source(file)
        except BadSource as bad:
            self._complain_of(bad)
            return
        if page is None and opts.url is None:
            if opts.format == "json":
                _print_source(file, source)
            else:
                show(f"{file}: {source.name}, no mistakes")
            return
        is_fetched = page is None or "://" in page
        what = page or opts.url
        body = self._fetched(source, what) if is_fetched else self._saved(source, what, opts.url)
        if not Library({file: source}).match(body.url, host_of(body.url)):
            self.complain(f"{body.url} is no page of {source.name}; a seed would have to name the source")
        follow = options.boolean(self.options, "SITE_FOLLOW_NOFOLLOW")
        found = asyncio.run(_extracted(source, body._replace(follow_nofollow=follow)))
        (_print_json if opts.format == "json" else _print)(source, found)
        nothing = f"nothing was found in the page as {body.url}; --url names another"
        for line in found.lost or ([] if found.items or found.links else [nothing]):
            self.complain(line)
            self.exitcode = EXIT_FAILED

    def _saved(self, source: Source, name: str, url: str | None) -> PageBody:
        try:
            with Path(name).open("rb") as file:
                body = file.read(_LARGEST_PAGE_BYTES)
        except OSError as error:
            raise SiteSpiderError(f"{name} cannot be read: {error.strerror or error}") from None
        return PageBody(check_url(url or f"http://{source.match.hosts[0].removeprefix('*.')}/"), body, None)

    def _fetched(self, source: Source, url: str) -> PageBody:
        fetched: list[PageBody | str] = []
        self.options.set("LOG_INSTALL_ROOT_HANDLER", False, priority="cmdline")  # `run` has done so
        process = AsyncCrawlerProcess(self.options)
        process.crawl(_Fetch, url=check_url(url), source=source, fetched=fetched)
        process.start()
        match fetched:
            case [PageBody() as page]:
                return page
            case [str(why)]:
                raise SiteSpiderError(f"{url} cannot be fetched: {why}")
        raise SiteSpiderError(f"{url} cannot be fetched; with -L INFO the log says why")


class _Fetch(Spider):
    """One page, with the headers and cookies of the source."""

    name = "source-check"
    url: str
    source: Source
    fetched: list[PageBody | str]

    async def start(self) -> AsyncIterator[Request]:
        wanted = self.source.request
        cookies: dict[Any, Any] = dict(wanted.cookies)
        yield Request(self.url, headers=dict(wanted.headers), cookies=cookies, errback=self.failed)

    def parse(self, response: Response) -> None:
        kind = response.headers.get("Content-Type") if response.headers else None
        page = PageBody(response.url, response.body, None if kind is None else kind.decode("latin-1"))
        self.fetched.append(describe_status(response.status) or page)

    def failed(self, failure: Failure) -> None:
        assert failure.value is not None
        self.fetched.append(describe_exception(failure.value, failure.request))  # type: ignore[attr-defined]


async def _extracted(source: Source, page: PageBody) -> Extracted:
    extractor = Extractor()
    try:
        return await extractor.extract(source, page)
    finally:
        await extractor.close()


# --- what is printed ----------------------------------------------------------------------------


def _row(path: Path, source: Source) -> list[object]:
    hosts = " ".join(source.match.hosts)
    enabled = "yes" if source.enabled else "no"
    return [source.name, enabled, hosts, len(source.items), path, source.description or None]


def _print_source(path: Path, source: Source) -> None:
    print_json({"file": str(path), **source.model_dump(mode="json", by_alias=True)})


def _print_json(source: Source, found: Extracted) -> None:
    links = [{"url": link.url, "by": _rule(link), "to": _topic(source, link)} for link in found.links]
    print_json({"items": found.items, "links": links, "notes": found.notes, "lost": found.lost})


def _print(source: Source, found: Extracted) -> None:
    if source.follow is None:
        show("Links are followed as SITE_LINK_SCOPE says: the source has no rules for them.")
    rows = [(link.url, _rule(link), _topic(source, link)) for link in found.links]
    if rows:
        print_table(_LINKS, rows[:_SHOWN])
    show(plural(len(rows), "link") + (f", {_SHOWN} of them shown" if len(rows) > _SHOWN else ""))
    print()
    fields = [
        (number, name, json.dumps(value, ensure_ascii=False))
        for number, item in enumerate(found.items[:_SHOWN], 1)
        for name, value in item.items()
    ]
    if fields:
        print_table(_FIELDS, fields)
    shown = f", {_SHOWN} of them shown" if len(found.items) > _SHOWN else ""
    show(plural(len(found.items), "item") + shown)
    for said in found.notes:
        show(f"note: {said}")


def _rule(link: FoundLink) -> str:
    return "pagination" if link.rule == NEXT_PAGE else f"follow.{link.rule}"


def _topic(source: Source, link: FoundLink) -> str | None:
    return None if link.rule == NEXT_PAGE or source.follow is None else source.follow[link.rule].to
