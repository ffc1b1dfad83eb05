"""The sources of a folder: which one a page belongs to. Changed files are taken while the crawl runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from site_spider.errors import ConfigError
from site_spider.sources.file import BadSource, Mistake, read_source, source_files, stamp_of
from site_spider.sources.model import Source, any_matches
from site_spider.text import plural

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0


class Library:
    """Sources by name and by host. Never changed."""

    def __init__(self, sources: Mapping[Path, Source]) -> None:
        self.sources = sources
        self._by_name = {source.name: source for source in sources.values() if source.enabled}
        self._by_host: dict[str, list[Source]] = {}
        for source in self._by_name.values():
            for host in source.match.hosts:
                self._by_host.setdefault(host, []).append(source)

    def __bool__(self) -> bool:
        """Whether there is one that is enabled."""
        return bool(self._by_name)

    def __iter__(self) -> Iterator[Source]:
        """Those that are enabled."""
        return iter(self._by_name.values())

    def named(self, name: str) -> Source | None:
        """The source of this name, if it is enabled."""
        return self._by_name.get(name)

    def of_host(self, host: str) -> list[Source]:
        """Those for a host: by its own name first, then by the nearest domain with a star."""
        if not self._by_host:
            return []
        found = list(self._by_host.get(host, ()))
        rest = host
        while rest:
            _, _, rest = rest.partition(".")
            if rest:
                found += self._by_host.get(f"*.{rest}", ())
        return found

    def match(self, url: str, host: str) -> Source | None:
        """The first of these whose URL patterns, if it has some, say yes."""
        for source in self.of_host(host):
            if not source.match.urls or any_matches(source.match.urls, url):
                return source
        return None


class _LoadedFile(NamedTuple):
    stamp: object
    source: Source | None  # None: it is bad, and was so from the first


class SourceFolder:
    """Follows the files of a folder. `look` is for a thread, all else for the event loop's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library = Library({})
        self._read: dict[Path, _LoadedFile] = {}
        self._doubles: dict[Path, Path] = {}  # files with the name of another one: the other one
        self._unlisted: str | None = None  # why the folder cannot be listed, once that is said

    @classmethod
    def open(cls, folder: Path, *, must_exist: bool) -> SourceFolder:
        """With all files read. Raises ConfigError, a line for each mistake."""
        found = cls(folder)
        if must_exist and not folder.is_dir():
            raise ConfigError(f"SITE_SOURCES_DIR is {str(folder)!r}, but there is no such folder.")
        if mistakes := found.look():
            lines = "\n".join(map(str, mistakes))
            raise ConfigError(f"SITE_SOURCES_DIR: {plural(len(mistakes), 'file')} cannot be used:\n{lines}")
        return found

    def look(self) -> list[BadSource]:
        """Take what has changed, forget what is gone; returns what is bad, once for each change."""
        mistakes: list[BadSource] = []
        paths = self._paths(mistakes)
        if paths is None:
            return mistakes
        before, self._read = self._read, {}
        for path in paths:
            with suppress(FileNotFoundError):  # it has just gone
                self._read[path] = self._newer(path, before.get(path), mistakes)
        sources = self._distinct(
            {path: read.source for path, read in self._read.items() if read.source}, mistakes
        )
        if sources != self.library.sources:
            self.library = Library(sources)
        return mistakes

    def _paths(self, mistakes: list[BadSource]) -> list[Path] | None:
        """None: nobody knows."""
        try:
            paths = source_files(self.folder)
        except FileNotFoundError:
            paths = []
        except OSError as error:
            why = error.strerror or str(error)
            if why != self._unlisted:
                self._unlisted = why
                mistakes.append(
                    BadSource(self.folder, [Mistake(1, 1, f"the folder cannot be listed: {why}")])
                )
            return None
        self._unlisted = None
        return paths

    def _newer(self, path: Path, before: _LoadedFile | None, mistakes: list[BadSource]) -> _LoadedFile:
        stamp = _stamp(path)
        if before is not None and before.stamp == stamp:
            return before
        try:
            return _LoadedFile(stamp, read_source(path))
        except BadSource as bad:
            mistakes.append(bad)
            return _LoadedFile(stamp, None if before is None else before.source)

    def _distinct(self, sources: dict[Path, Source], mistakes: list[BadSource]) -> dict[Path, Source]:
        """Of two with one name the first file counts."""
        first: dict[str, Path] = {}
        before, self._doubles = self._doubles, {}
        for path, source in sources.items():
            other = first.setdefault(source.name, path)
            if other is path:
                continue
            self._doubles[path] = other
            if before.get(path) != other:
                said = f"the name {source.name} is that of {other.name}, which counts"
                mistakes.append(BadSource(path, [Mistake(1, 1, said)]))
        return {path: sources[path] for path in first.values()}

    async def follow(self) -> None:
        """Look every other second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            before = self.library
            for bad in await asyncio.to_thread(self.look):
                logger.error("A source file cannot be used; what it said before counts:\n%s", bad)
            if self.library is not before:
                logger.info("Sources: %s", ", ".join(source.name for source in self.library) or "none")


def _stamp(path: Path) -> tuple[object, ...]:
    """What differs when there is something new to take or to say. Raises FileNotFoundError: it is gone."""
    found: list[object] = []
    for status in (path.lstat, path.stat):
        try:
            found.append(stamp_of(status()))
        except OSError as error:  # not allowed, or a link that leads nowhere
            if isinstance(error, FileNotFoundError) and not found:
                raise
            found.append(error.errno)
    return tuple(found)
