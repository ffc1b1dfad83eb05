"""Reads a source file; every mistake has the line it stands in."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from site_spider.errors import SiteSpiderError
from site_spider.sources import model

MAX_FILE_BYTES = 262_144
_MAX_NODES = 20_000  # with those that aliases repeat
_SUFFIXES = (".yaml", ".yml")
_YAML = "tag:yaml.org,2002:"

Path_ = tuple[str | int, ...]


class Mistake(NamedTuple):
    """In a file; lines and columns from 1 on."""

    line: int
    column: int
    message: str


class BadSource(SiteSpiderError):
    """A source file cannot be used; its text is one line for each mistake."""

    def __init__(self, path: Path, mistakes: list[Mistake]) -> None:
        super().__init__("\n".join(f"{path}:{line}:{column}: {said}" for line, column, said in mistakes))
        self.path, self.mistakes = path, mistakes


def source_files(folder: Path) -> list[Path]:
    """The files of a folder that are sources, in the order of their names."""
    return sorted(
        path for path in folder.iterdir() if path.suffix in _SUFFIXES and not path.name.startswith(".")
    )


def read_source(path: Path) -> model.Source:
    """The source in a file. Raises BadSource."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadSource(path, [Mistake(1, 1, f"cannot be read: {error.strerror or error}")]) from None
    if len(raw) > MAX_FILE_BYTES:
        raise BadSource(path, [Mistake(1, 1, f"is larger than {MAX_FILE_BYTES} bytes")])
    return parse_source(raw, path)


def parse_source(raw: bytes, path: Path) -> model.Source:
    """The same of a text; `path` names it, and its stem is the name of a source that has none."""
    tree = _YamlTree()
    try:
        data = tree.read(raw)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
        raise BadSource(path, [Mistake(*place, error.problem or "is no YAML")]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = "is nested too deeply" if isinstance(error, RecursionError) else f"is no YAML: {error}"
        raise BadSource(path, [Mistake(1, 1, " ".join(said.split()))]) from None
    if not isinstance(data, dict):
        raise BadSource(path, [Mistake(1, 1, "must be a mapping with the keys match, items, ...")])
    try:
        return model.Source.model_validate({"name": path.stem, **data})
    except ValidationError as error:
        raise BadSource(path, sorted(_mistakes(error, tree))) from None


class _YamlTree:
    """Values of a YAML document, and where each stands."""

    def __init__(self) -> None:
        self.places: dict[Path_, tuple[int, int]] = {}
        self._nodes = 0
        self._scalars = yaml.constructor.SafeConstructor()

    def read(self, raw: bytes) -> Any:
        """Raises YAMLError, ValueError for what is no text, RecursionError."""
        node = yaml.compose(raw, Loader=yaml.SafeLoader)
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
            key = key_node.value
            if key in found:
                raise _error(f"the key {key!r} stands here twice", key_node)
            self.places[*path, key] = _place(key_node)
            found[key] = self._value(value_node, (*path, key))
        return found

    def _scalar(self, node: yaml.Node) -> Any:
        kind = node.tag.removeprefix(_YAML)
        if kind in ("str", "timestamp"):  # dates stay texts
            return node.value
        if kind not in ("int", "float", "bool", "null"):
            raise _error(f"the tag {node.tag} is not known here", node)
        return self._scalars.construct_object(node)


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _error(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _mistakes(error: ValidationError, tree: _YamlTree) -> Iterator[Mistake]:
    for one in error.errors(include_url=False):
        path = one["loc"]
        yield Mistake(*_nearest(path, tree), _said(one["type"], path, one["msg"], tree))


def _nearest(path: Path_, tree: _YamlTree) -> tuple[int, int]:
    """The place of what is meant, or of what should have it."""
    while path and path not in tree.places:
        path = path[:-1]
    return tree.places.get(path, (1, 1))


def _said(kind: str, path: Path_, message: str, tree: _YamlTree) -> str:
    shown = ".".join(map(str, _written(path, tree)))
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1]), _KEYS, 1)
        return f"{shown}: this key is not known" + (f"; did you mean {near[0]}?" if near else "")
    if kind == "missing":
        return f"{shown}: is missing"
    message = message.removeprefix("Value error, ")
    return f"{shown}: {message}" if shown else message


def _written(path: Path_, tree: _YamlTree) -> Path_:
    """Without what pydantic puts in between, as the name of a union's member."""
    end = next((n for n in range(1, len(path)) if path[:n] not in tree.places), len(path))
    return path[:end]


_MODELS = (
    model.Source, model.Match, model.Requests, model.LinkRule, model.Pagination, model.ItemRule,
    model.ItemField, model.ValueStep,
)  # fmt: skip
_KEYS = sorted({field.alias or name for one in _MODELS for name, field in one.model_fields.items()})
