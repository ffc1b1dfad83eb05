"""Which links are not followed, by their URL: SITE_URL_DENY, SITE_URL_ALLOW, and a YAML file by host.

A refusal has the name of its rule. Nothing here is about seeds. All patterns of one list are one automaton of
RE2, so a URL takes the same time whatever their number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import re2
from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints, TypeAdapter

from site_spider import options
from site_spider.errors import ConfigError
from site_spider.options import SettingsView
from site_spider.page.url import host_of
from site_spider.sources.library import BadSource, FollowedFile, parse
from site_spider.sources.model import Part, Pattern, PatternSet, taken_by

logger = logging.getLogger(__name__)

FILE = "SITE_URL_RULES"
MOST_PATTERNS = 1_000  # of a list
_MOST_HOSTS = 4_096  # whose rules are kept together
_MOST_LOOKED_AT = 100  # segments of a path, for repeats
_LONGEST_SHOWN = 80  # characters of a rule
_LOOK_SECONDS = 2.0
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 16_000_000  # bytes of the patterns of a list; more is refused
_OF_PATTERNS = frozenset("\\^$*|{}")  # + ( ) [ ] stand in URLs as well

_Text = Annotated[str, StringConstraints(min_length=1, max_length=1_000)]
_Beginning = Annotated[_Text, StringConstraints(pattern="^(https?://|/)")]


class Shape(NamedTuple):
    """The most that a link may have; 0: any number."""

    repeats: int = 3  # of segments in a row, one or several of them: so many are too many
    segments: int = 20
    length: int = 0  # characters of the URL

    def fault(self, url: str) -> str | None:
        """Which of them is too large."""
        repeats, most, length = self
        if length and len(url) > length:
            return "length"
        path = url.partition("?")[0]
        if most and path.count("/") - 2 - path.endswith("/") > most:
            return "segments"
        segments = path.split("/", _MOST_LOOKED_AT)[3:]
        if segments and not segments[-1]:  # behind a final slash
            segments.pop()
        return "repeats" if repeats and _repeats(segments, repeats) else None


def _repeats(segments: list[str], times: int) -> bool:
    """Whether some segments stand so many times in a row."""
    if len(segments) < times or len(segments) - len(set(segments)) < times - 1:
        return False
    for size in range(1, len(segments) // times + 1):
        run = 0  # segments that are as the one `size` before them
        for before, one in zip(segments, segments[size:], strict=False):
            run = run + 1 if one == before else 0
            if run >= size * (times - 1):
                return True
    return False


class UrlList(Part):
    """URLs: those that one of these is about."""

    prefixes: list[_Beginning] = Field(
        [], max_length=MOST_PATTERNS, description="of the URL; beginning with /: of path and query"
    )
    suffixes: list[_Text] = Field(
        [], max_length=MOST_PATTERNS, description="of the path, such as .pdf; capitals do not count"
    )
    patterns: list[Pattern] = Field([], max_length=MOST_PATTERNS, description="RE2, found anywhere in the URL")

    def __bool__(self) -> bool:
        return bool(self.prefixes or self.suffixes or self.patterns)

    @cached_property
    def matcher(self) -> Matcher:
        """Raises ValueError for patterns that are too large together."""
        return Matcher(self)


def sorted_out(entries: object) -> object:
    """A plain list: *.pdf is a suffix, http://host/path a prefix, anything else a pattern."""
    if isinstance(entries, dict | UrlList):
        return entries
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"must be a list of texts, or a mapping with {', '.join(UrlList.model_fields)}")
    found: dict[str, list[str]] = {"prefixes": [], "suffixes": [], "patterns": []}
    for entry in entries:
        if entry.startswith("*.") and not _OF_PATTERNS & set(entry[1:]):
            found["suffixes"].append(entry[1:])
        elif entry.startswith(("http://", "https://")) and not _OF_PATTERNS & set(entry):
            found["prefixes"].append(entry)
        else:
            found["patterns"].append(entry)
    return found


_List = Annotated[
    UrlList, taken_by(attrgetter("matcher")), BeforeValidator(sorted_out, json_schema_input_type=UrlList | list[str])
]
_Most = Annotated[int, Field(ge=0, le=1_000_000)]


class HostRules(Part):
    """Rules of one host, of a domain with all hosts in it (*.shop.example), or of all hosts (*)."""

    deny: _List | None = None
    allow: _List | None = Field(None, description="a link has to be in one of the lists for its host")
    repeats: _Most | None = Field(None, description="of segments of the path in a row (3); 0: any number")
    segments: _Most | None = Field(None, description="of the path (20); 0: any number")
    length: _Most | None = Field(None, description="characters of the URL (no limit)")


_HOST = r"^(\*|[0-9a-f]*:[0-9a-f]*:[0-9a-f:]*|(\*\.)?[a-z0-9_]([a-z0-9._-]{0,250}[a-z0-9_])?)$"
_Host = Annotated[str, StringConstraints(pattern=_HOST)]
_LIST = TypeAdapter(_List)
_HOSTS = TypeAdapter(dict[_Host, HostRules], config=ConfigDict(defer_build=True))
_parse = partial(parse, root=HostRules, read=_HOSTS.validate_python)


class Matcher:
    """Finds the entry of a list that a URL is in."""

    def __init__(self, urls: UrlList) -> None:
        self._wholes = tuple(prefix for prefix in urls.prefixes if not prefix.startswith("/"))
        self._paths = tuple(prefix for prefix in urls.prefixes if prefix.startswith("/"))
        self._suffixes = tuple(suffix.lower() for suffix in urls.suffixes)
        self._patterns = PatternSet(urls.patterns, _OPTIONS)

    def entry(self, url: str) -> str | None:
        """The first that it is in."""
        if self._wholes and url.startswith(self._wholes):
            return next(filter(url.startswith, self._wholes))
        if self._paths and (found := _first(self._paths, str.startswith, _target(url))):
            return found
        if self._suffixes and (found := _first(self._suffixes, str.endswith, url.partition("?")[0].lower())):
            return found
        return self._patterns.first(url) if self._patterns else None


def _first(entries: tuple[str, ...], meets: Any, text: str) -> str | None:
    return next((entry for entry in entries if meets(text, entry)), None) if meets(text, entries) else None


def _target(url: str) -> str:
    slash = url.find("/", url.find("://") + 3)
    return url[slash:] if slash >= 0 else "/"


class _Together(NamedTuple):
    """All that is said of one host."""

    deny: tuple[tuple[str, Matcher], ...] = ()  # each with where it stands
    allow: tuple[Matcher, ...] = ()
    shape: Shape = Shape()


class UrlRules:
    """Never changed."""

    def __init__(self, deny: UrlList, allow: UrlList, hosts: Mapping[str, HostRules]) -> None:
        self._usual = HostRules(deny=deny, allow=allow)  # type: ignore[call-arg]
        self._hosts = hosts
        self._everywhere = self._of(()) if not hosts else None
        self._of_host = lru_cache(maxsize=_MOST_HOSTS)(lambda host: self._of(tuple(_names(host))))

    def refusal(self, url: str, *, needs_allow: bool = True) -> str | None:
        """The name of the rule by which a link is not followed; None: it is."""
        said = self._everywhere or self._of_host(host_of(url))
        if fault := said.shape.fault(url):
            return fault
        for place, matcher in said.deny:
            if entry := matcher.entry(url):
                return f"{place} {entry}"[:_LONGEST_SHOWN]
        if said.allow and needs_allow and not any(matcher.entry(url) for matcher in said.allow):
            return "allow"
        return None

    def _of(self, names: Sequence[str]) -> _Together:
        rules = [("SITE_URL_DENY", self._usual)]
        rules += [(f"{name} deny", found) for name in names if (found := self._hosts.get(name)) is not None]
        deny = [(place, one.deny.matcher) for place, one in rules if one.deny]
        allow = [one.allow.matcher for _, one in rules if one.allow]
        most = {
            name: value for name in ("repeats", "segments", "length") for _, one in rules
            if (value := getattr(one, name)) is not None
        }  # fmt: skip
        return _Together(tuple(deny), tuple(allow), Shape(**most))


def _names(host: str) -> Iterator[str]:
    """What a file may call a host, the nearest last."""
    labels = host.split(".")
    yield "*"
    for number in reversed(range(len(labels))):
        yield f"*.{'.'.join(labels[number:])}"
    yield host


class UrlRulesFile:
    """The rules as they are now. `look` is for a thread, all else for the event loop's."""

    def __init__(self, deny: UrlList, allow: UrlList, path: Path | None) -> None:
        self._deny, self._allow = deny, allow
        self._file = None if path is None else FollowedFile(path, _parse)
        self.rules = UrlRules(deny, allow, {})

    @classmethod
    def open(cls, settings: SettingsView) -> Self:
        """As the settings say. Raises ConfigError, with each mistake of the file."""
        deny, allow = (_list_of(settings, name) for name in ("SITE_URL_DENY", "SITE_URL_ALLOW"))
        name = options.text(settings, FILE)
        found = cls(deny, allow, Path(name) if name else None)
        if (mistake := found.look()) is not None:
            raise ConfigError(f"{FILE} cannot be used: {'; '.join(str(mistake).splitlines())}")
        return found

    def look(self) -> BadSource | None:
        """Take the file if it has changed; returns what is bad, once for each change."""
        if self._file is None:
            return None
        before, bad = self._file.content, self._file.look()
        if self._file.content is not before:
            self.rules = UrlRules(self._deny, self._allow, self._file.content or {})
        return bad

    async def follow(self) -> None:
        """Look every other second, until cancelled."""
        while self._file is not None:
            await asyncio.sleep(_LOOK_SECONDS)
            before = self.rules
            if (bad := await asyncio.to_thread(self.look)) is not None:
                logger.error("%s cannot be used; what it said before counts: %s", FILE, bad.in_one_line)
            elif self.rules is not before:
                logger.info("%s: %s was read", FILE, self._file.path)


def _list_of(settings: SettingsView, name: str) -> UrlList:
    given = settings.get(name)
    is_plain = isinstance(given, str) and not given.lstrip().startswith("[")
    entries = options.names(settings, name) if is_plain else options.texts(settings, name)
    if is_plain and any(entry.count("{") != entry.count("}") for entry in entries):
        raise ConfigError(f"{name} has a comma in a pattern: write it as a JSON array of texts.")
    try:
        return _LIST.validate_python(entries)
    except ValueError as error:
        said = "; ".join(one["msg"].removeprefix("Value error, ") for one in error.errors())  # type: ignore[attr-defined]
        raise ConfigError(f"{name}: {said}.") from None
