"""The sources of a folder: which one a page belongs to. Changed files are taken while the crawl runs."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import stat
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from site_spider.errors import ConfigError, SeedError, SiteSpiderError
from site_spider.page.url import check_url, host_of
from site_spider.sources import model
from site_spider.sources.model import Source, any_matches, names_of, sound
from site_spider.text import plural, shown

# --- file: reads a source file; every mistake has the line it stands in ----------------------------------

MAX_FILE_BYTES = 262_144
_MAX_NODES = 20_000  # with those that aliases repeat
_ATTEMPTS = 3  # to read a file that is being written
_LONGEST_NUMBER = 100  # characters
_SUFFIXES = (".yaml", ".yml")
_YAML = "tag:yaml.org,2002:"

Path_ = tuple[str | int, ...]
_Read = TypeVar("_Read")


class Mistake(NamedTuple):
    """In a file; lines and columns from 1 on, 0 where it is about the whole file."""

    line: int
    column: int
    message: str


class BadSource(SiteSpiderError):
    """A source file cannot be used; its text is one line for each mistake."""

    def __init__(self, path: Path, mistakes: list[Mistake]) -> None:
        name = str(path).encode("utf-8", "backslashreplace").decode()
        places = (f"{name}:{one.line}:{one.column}" if one.line else name for one in mistakes)
        super().__init__("\n".join(f"{at}: {one.message}" for at, one in zip(places, mistakes, strict=True)))
        self.mistakes = mistakes

    @property
    def in_one_line(self) -> str:
        """For the log, whose records are one line each."""
        return str(self).replace("\n", "; ")


def source_files(folder: Path) -> list[Path]:
    """The files of a folder that are sources, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES and not path.name.startswith("."))


def read_file(path: Path, most: int) -> bytes:
    """At most so many bytes of an ordinary file, or of the one that a link leads to.

    Raises OSError at once for what is no file: opening a named pipe would wait for its other end.
    """
    for _ in range(_ATTEMPTS):
        _check_ordinary(path.stat())  # a device is not even opened
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            before = os.fstat(file.fileno())
            _check_ordinary(before)
            raw = file.read(most)
            if stamp_of(os.fstat(file.fileno())) == stamp_of(before):
                return raw
    raise OSError("it changes while it is read")


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """What differs when a file has changed, or may be read at last."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev


def _check_ordinary(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((said for is_it, said in _KINDS if is_it(status.st_mode)), "a device")
        raise OSError(f"it is {kind}, and no ordinary file")


_KINDS = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"))


def read_source(path: Path) -> model.Source:
    """The source in a file. Raises BadSource, whatever the file is and holds."""
    return read_with(path, parse_source)


def read_with(path: Path, parser: Callable[[bytes, Path], _Read]) -> _Read:
    """What a parser makes of a file. Raises BadSource, whatever the file is and holds."""
    try:
        raw = read_file(path, MAX_FILE_BYTES + 1)
        if len(raw) <= MAX_FILE_BYTES:
            return parser(raw, path)
        said = f"is larger than {MAX_FILE_BYTES} bytes"
    except BadSource:
        raise
    except OSError as error:
        said = f"cannot be read: {error.strerror or error}"
    except Exception as error:  # noqa: BLE001 - parsers of others: no file ends the process that follows it
        said = f"cannot be used: {type(error).__name__}: {shown(str(error))}"
    raise BadSource(path, [Mistake(0, 0, said)])


class FollowedFile(Generic[_Read]):
    """What a parser made of a file when it could be used last."""

    def __init__(self, path: Path, parser: Callable[[bytes, Path], _Read]) -> None:
        self.path, self._parser = path, parser
        self.content: _Read | None = None
        self._stamp: object = None
        self._said = ""  # why it could not be read

    def look(self, attempts: int = _ATTEMPTS) -> BadSource | None:
        """Take the file if it has changed; returns what is bad, once for each change."""
        if (stamp := _stamp(self.path)) == self._stamp:
            self._said = ""
            return None
        try:
            self.content = read_with(self.path, self._parser)
        except BadSource as bad:
            if attempts > 1 and _stamp(self.path) != stamp:  # it was replaced meanwhile
                return self.look(attempts - 1)
            if bad.mistakes[0].line:
                self._stamp = stamp
            elif str(bad) == self._said:
                return None
            self._said = str(bad)  # a file that was not read may be read at last: too many were open, say
            return bad
        self._stamp, self._said = stamp, ""
        return None


def _stamp(path: Path) -> object:
    """What differs when there is something new to take or to say."""
    try:
        return stamp_of(path.stat())
    except OSError as error:  # it is gone, not allowed, or a link that leads nowhere
        return error.errno


def parse_source(raw: bytes, path: Path) -> model.Source:
    """The same of a text; `path` names it, and its stem is the name of a source that has none."""
    usual, keys = {"name": path.stem}, "the keys match, items, ..."
    return parse(raw, path, model.Source, lambda data: model.Source.model_validate({**usual, **data}), keys)


def parse(
    raw: bytes,
    path: Path,
    root: type[BaseModel],
    read: Callable[[dict[str, Any]], _Read],
    keys: str = "hosts as its keys",
) -> _Read:
    """What `read` makes of a mapping in a YAML file; `root` has the keys that are known. Raises BadSource."""
    tree = _YamlTree()
    try:
        data = tree.read(raw)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        raise BadSource(path, [Mistake(*place, error.problem or "is no YAML")]) from None
    except yaml.reader.ReaderError as error:  # which counts in characters, or, of bytes that are none, in bytes
        codec = "utf-16" if raw[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8"
        known = raw if error.encoding == "unicode" else raw[: error.position]
        before = known.decode(codec, "replace")[: error.position]
        place = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise BadSource(path, [Mistake(*place, f"is no YAML: {error.reason}")]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = "is nested too deeply" if isinstance(error, RecursionError) else f"is no YAML: {error}"
        raise BadSource(path, [Mistake(1, 1, " ".join(said.split()))]) from None
    if not isinstance(data, dict):
        raise BadSource(path, [Mistake(1, 1, f"must be a mapping with {keys}")])
    try:
        return read(data)
    except ValidationError as error:
        raise BadSource(path, sorted(_mistakes(error, tree, root))) from None


class _SourceLoader(yaml.SafeLoader):
    """Values without quotes mean what they mean in YAML 1.2: `yes`, 1:30, 1_000 and 2024-01-01 are texts."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as the class above has it


for _kind, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _SourceLoader.add_implicit_resolver(_YAML + _kind, re.compile(rf"(?:{_pattern})\Z"), list(_first))


class _YamlTree:
    """Values of a YAML document, and where each stands."""

    def __init__(self) -> None:
        self.places: dict[Path_, tuple[int, int]] = {}
        self._nodes = self._characters = 0

    def read(self, raw: bytes) -> Any:
        """Raises YAMLError, ValueError for what is no text, RecursionError."""
        node = yaml.compose(raw, Loader=_SourceLoader)
        return None if node is None else self._value(node, ())

    def _value(self, node: yaml.Node, path: Path_) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise _error(f"has more than {_MAX_NODES} values", node)
        self.places.setdefault(path, _place(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(part, (*path, index)) for index, part in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _error("a key must be a text", key_node)
            key = _text(key_node)
            if key in found:
                raise _error(f"the key {shown(key)} stands here twice", key_node)
            self.places[*path, key] = _place(key_node)
            found[key] = self._value(value_node, (*path, key))
        return found

    def _scalar(self, node: yaml.Node) -> Any:
        text = _text(node)
        self._characters += len(text)
        if self._characters > MAX_FILE_BYTES:
            raise _error(f"has more than {MAX_FILE_BYTES} characters where its aliases stand", node)
        match node.tag.removeprefix(_YAML):
            case "str":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int" | "float" as kind:
                return _number(kind, node)
        raise _error(f"the tag {shown(node.tag)} is not known here", node)


def _text(node: yaml.Node) -> str:
    text: str = node.value
    if sound(text) != text:
        raise _error(f"{shown(text)} holds half a character", node)
    return text


def _number(kind: str, node: yaml.Node) -> int | float:
    text = node.value
    number: int | float = math.inf
    if len(text) <= _LONGEST_NUMBER:
        with suppress(ValueError):
            number = int(text, 0 if text[1:2] in ("o", "x") else 10) if kind == "int" else float(text)
    if not math.isfinite(number):
        raise _error(f"{shown(text)} is no number that can be used", node)
    return number


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _error(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


# --- mistakes in words ---------------------------------------------------------------------------


def _mistakes(error: ValidationError, tree: _YamlTree, root: type[BaseModel]) -> Iterator[Mistake]:
    for one in error.errors(include_url=False):
        path = one["loc"]
        named = ".".join(map(str, _written(path, tree)))
        said = _said(one, root)
        yield Mistake(*_nearest(path, tree), f"{named}: {said}" if named else said)


def _nearest(path: Path_, tree: _YamlTree) -> tuple[int, int]:
    """The place of what is meant, or of what should have it."""
    while path and path not in tree.places:
        path = path[:-1]
    return tree.places.get(path, (1, 1))


def _written(path: Path_, tree: _YamlTree) -> Path_:
    """Without what pydantic puts in between, as the name of a union's member."""
    end = next((n for n in range(1, len(path)) if path[:n] not in tree.places), len(path))
    return tuple(part for part in path[:end] if part != "[key]")


def _said(one: ErrorDetails, root: type[BaseModel]) -> str:
    """The words for a kind of mistake; `ctx` is what pydantic knows of it."""
    kind, value, known = one["type"], one["input"], one.get("ctx", {})
    if kind == "extra_forbidden":
        return f"this key is not known{_remedy(one['loc'], root)}"
    if kind == "string_pattern_mismatch":
        return _unfitting(str(value), known["pattern"])
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f"must be a text: put {shown(value)} in quotes"
    if kind not in _WORDS:  # as value_error: ours
        return one["msg"].removeprefix("Value error, ")
    whole = {name: int(one) if isinstance(one, float) and one.is_integer() else one for name, one in known.items()}
    return _WORDS[kind].format(shown=shown(value), **whole)


_NO_NUMBER, _NO_MAPPING = "must be a number, not {shown}", "must be a mapping of keys to values, not {shown}"
_WORDS = {
    "missing": "is missing",
    "string_type": "must be a text, not {shown}",
    "string_too_long": "has more than {max_length} characters",
    "bool_type": "must be true or false, not {shown}",
    "int_type": "must be a whole number, not {shown}",
    "float_type": _NO_NUMBER,
    "finite_number": _NO_NUMBER,
    "greater_than_equal": "must be {ge} or more, not {shown}",
    "less_than_equal": "must be {le} or less, not {shown}",
    "list_type": "must be a list, not {shown}",
    "dict_type": _NO_MAPPING,
    "model_type": _NO_MAPPING,
    "model_attributes_type": _NO_MAPPING,
    "too_short": "must have at least {min_length}",
    "too_long": "must have {max_length} at most",
    "literal_error": "must be {expected}, not {shown}",
    "none_required": "takes no value",
    "recursion_loop": "is nested too deeply",
}


def _unfitting(value: str, pattern: str) -> str:
    if r"(\*\.)?" not in pattern:  # of no host
        return f"{shown(value)} is not taken: {_TAKEN.get(pattern, f'it must match {pattern}')}"
    star, rest = ("*.", value[2:]) if value.startswith("*.") else ("", value)
    try:
        host = host_of(check_url(rest if "://" in rest else f"http://{rest}"))
    except SeedError:
        host = ""
    fits = re.fullmatch(pattern, star + host) is not None
    return f"{shown(value)} is no host name" + (f"; write {star}{host}" if fits else ", such as shop.example")


def _pattern_of(kind: Any) -> str:
    (constraints,) = kind.__metadata__
    return str(constraints.pattern)


_TAKEN = {
    _pattern_of(model.Name): "up to 64 of a-z, 0-9, - and _, beginning with a letter or digit",
    _pattern_of(model.FieldName): "up to 64 letters, digits and _, beginning with a letter",
    _pattern_of(model.Topic): "up to 249 letters, digits, dots, - and _",
    _pattern_of(model.HeaderName): "up to 100 characters that HTTP has for a name",
    _pattern_of(model.HeaderText): "up to 4000 printable characters of ASCII in one line",
}


def _inside(part: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The parts that stand in a part, by their keys."""
    found = ((field.alias or name, _part_in(field.annotation)) for name, field in part.model_fields.items())
    return {key: kind for key, kind in found if kind is not None}


def _part_in(kind: Any) -> type[BaseModel] | None:
    if kinds := get_args(kind):
        return next(filter(None, map(_part_in, kinds)), None)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


_PLACES = {model.Source: "the top"} | {
    kind: key for part in (model.Source, model.ItemRule, model.ItemField) for key, kind in _inside(part).items()
}


def _remedy(path: Path_, root: type[BaseModel]) -> str:
    """The nearest key of the same part; else where a key of this name, or nearly so, belongs."""
    key, rest = str(path[-1]), iter(path[:-1])
    part = root
    for name in rest:
        part = _inside(part).get(str(name), part)
        if part is model.ItemField and name == "fields":
            next(rest, None)  # the field's own name
    here = _keys(part)
    if near := get_close_matches(key, here, 1):
        return f"; did you mean {near[0]}?"
    elsewhere = {other for one in _PLACES for other in _keys(one)} if root is model.Source else set()
    if near := get_close_matches(key, sorted(elsewhere), 1):
        places = " or ".join(place for one, place in _PLACES.items() if near[0] in _keys(one))
        return f" here; {near[0]} belongs in {places}"
    return f"; known here: {', '.join(here)}"


def _keys(part: type[BaseModel]) -> list[str]:
    return sorted(field.alias or name for name, field in part.model_fields.items())


logger = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0


class Library:
    """Sources by name and by host. Never changed."""

    def __init__(self, sources: Mapping[Path, Source]) -> None:
        self.sources = sources
        self._by_name = {source.name: source for source in sources.values() if source.enabled}
        self.enabled = tuple(self._by_name.values())
        self._by_host: dict[str, list[Source]] = {}
        for source in self._by_name.values():
            for host in source.match.hosts:
                self._by_host.setdefault(host, []).append(source)

    def named(self, name: str) -> Source | None:
        """The source of this name, if it is enabled."""
        return self._by_name.get(name)

    def lacks(self, name: str) -> bool:
        """Whether seeds that name it are refused. Without sources no name counts."""
        return bool(self.enabled) and name not in self._by_name

    def of_host(self, host: str) -> list[Source]:
        """Those for a host: by its own name first, then by the nearest domain with a star."""
        return [source for name in names_of(host) for source in self._by_host.get(name, ())]

    def match(self, url: str, host: str) -> Source | None:
        """The first of these whose URL patterns, if it has some, say yes."""
        for source in self.of_host(host):
            if not source.match.urls or any_matches(source.match.urls, url):
                return source
        return None


class SourceFolder:
    """Follows the files of a folder. `look` is for a thread, all else for the event loop's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.library = Library({})
        self._files: dict[Path, FollowedFile[Source]] = {}
        self._doubles: dict[Path, Path] = {}  # files with the name of another one: the other one
        self._unlisted: str | None = None  # why the folder cannot be listed, once that is said

    @classmethod
    def open(cls, folder: Path, *, must_exist: bool) -> SourceFolder:
        """With all files read. Raises ConfigError, with each mistake."""
        found = cls(folder)
        if must_exist and not folder.is_dir():
            raise ConfigError(f"SITE_SOURCES_DIR is {str(folder)!r}, but there is no such folder.")
        if mistakes := found.look():
            said = "; ".join("\n".join(map(str, mistakes)).splitlines())
            raise ConfigError(f"SITE_SOURCES_DIR: {plural(len(mistakes), 'file')} cannot be used: {said}")
        return found

    def look(self) -> list[BadSource]:
        """Take what has changed, forget what is gone; returns what is bad, once for each change."""
        mistakes: list[BadSource] = []
        paths = self._paths(mistakes)
        if paths is None:
            return mistakes
        before, self._files = self._files, {}
        for path in paths:
            file = before.get(path) or FollowedFile(path, parse_source)
            bad = file.look()
            if os.path.lexists(path):  # else it has just gone
                self._files[path] = file
                mistakes += [bad] if bad else []
        sources = {path: file.content for path, file in self._files.items() if file.content}
        sources = self._distinct(sources, mistakes)
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
                mistakes.append(BadSource(self.folder, [Mistake(1, 1, f"the folder cannot be listed: {why}")]))
            return None
        self._unlisted = None
        return paths

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
                mistakes.append(BadSource(path, [Mistake(0, 0, said)]))
        return {path: sources[path] for path in first.values()}

    async def follow(self) -> None:
        """Look every other second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            before = self.library
            for bad in await asyncio.to_thread(self.look):
                logger.error("A source file cannot be used; what it said before counts: %s", bad.in_one_line)
            if self.library is not before:
                logger.info("Sources: %s", ", ".join(source.name for source in self.library.enabled) or "none")
