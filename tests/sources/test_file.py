"""Source files: what stands in them, and where each mistake is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from site_spider.sources.file import MAX_FILE_BYTES, BadSource, parse_source, read_source, source_files
from tests.commands.project import ROOT
from tools import schemas

PATH = Path("shop.yaml")
MATCH = b"match: {hosts: [shop.test]}\n"


def mistakes(raw: bytes) -> list[tuple[int, int, str]]:
    with pytest.raises(BadSource) as bad:
        parse_source(raw, PATH)
    return [tuple(mistake) for mistake in bad.value.mistakes]


def test_every_mistake_has_its_place() -> None:
    """All of a file at once, with the nearest known key."""
    found = mistakes(
        b"""match:
  hosts: [Shop.test]
folow: []
items:
  - feilds: {}
    fields:
      a: {css: "h1[", type: txt}
      b: {}
      c: {regex: '(?=x)'}
      d: {css: a, then: [stripp, {number: 5}]}
      e: {css: a, required: true, default: 1}
"""
    )
    assert [place[:2] for place in found] == [
        (2, 11), (3, 1), (5, 5), (7, 11), (7, 23), (8, 7), (9, 11), (10, 26), (10, 35), (11, 7),
    ]  # fmt: skip
    said = [message for _, _, message in found]
    assert said[1] == "folow: this key is not known; did you mean follow?"
    assert said[2] == "items.0.feilds: this key is not known; did you mean fields?"
    assert said[3].startswith("items.0.fields.a.css: 'h1[' is no CSS selector")
    assert said[6] == "items.0.fields.c.regex: RE2 does not take the pattern: invalid perl operator: (?="


@pytest.mark.parametrize(
    ("raw", "place", "said"),
    [
        (b"a: [", (1, 5), "expected"),
        (b"\xff\xfe\x00", (1, 1), "is no YAML"),
        (b"[" * 90_000, (1, 1), "is nested too deeply"),
        (b"a: 1\nb: 2\na: 3", (3, 1), "the key 'a' stands here twice"),
        (b"a: !!python/object:os.system x", (1, 4), "the tag"),
        (b"", (1, 1), "must be a mapping"),
        (b"- a", (1, 1), "must be a mapping"),
        (b"{[a]: 1}", (1, 2), "a key must be a text"),
        (b"a: &a [*a]", (1, 1), "is nested too deeply"),
        (b"a: " + b"9" * 5000, (1, 1), "is no YAML"),
        (b"items: []", (1, 1), "match: is missing"),
        (b"match: {hosts: []}", (1, 9), "match.hosts: List should have at least 1 item"),
        (MATCH + b"items: [{fields: {_page: {css: a}}}]", (2, 19), "items.0.fields._page"),
        (
            MATCH + b"request: {headers: {Host: evil.test}}",
            (1, 1),
            "request.headers: Host cannot be set here",
        ),
        (MATCH + b'request: {headers: {A: "x\\r\\ny"}}', (2, 21), "request.headers.A"),
        (MATCH + b"follow: [{to: 'a b'}]", (2, 11), "follow.0.to"),
        (MATCH + b"items: [{fields: {a: {xpath: 're:test(., \"a\")'}}}]", (2, 23), "items.0.fields.a.xpath"),
        (MATCH + b"items: [{fields: {a: {xpath: 'nothing()'}}}]", (2, 23), "items.0.fields.a.xpath"),
        (MATCH + b"items: [{fields: {a: {jmespath: 'a['}}}]", (2, 23), "items.0.fields.a.jmespath"),
        (
            MATCH + b"items: [{fields: {a: {regex: '" + b"(a{1000}){1000}" + b"'}}}]",
            (2, 23),
            "items.0.fields.a",
        ),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_cannot_be_used(raw: bytes, place: tuple[int, int], said: str) -> None:
    line, column, message = mistakes(raw)[0]
    assert message.startswith(said)
    assert (line, column) == place


def test_aliases_do_not_multiply() -> None:
    """Each of these lines repeats the one before it nine times."""
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    ((_, _, message),) = mistakes("\n".join(lines).encode())
    assert message == "has more than 20000 values"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, a folder, or too large."""
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    for path in (tmp_path / "none.yaml", tmp_path, large):
        with pytest.raises(BadSource):
            read_source(path)


def test_the_name_is_that_of_the_file_unless_it_says_another(tmp_path: Path) -> None:
    assert parse_source(MATCH, PATH).name == "shop"
    assert parse_source(MATCH + b"name: other", PATH).name == "other"


def test_the_examples_of_sources_can_be_used() -> None:
    """And are for hosts that nobody has."""
    files = source_files(ROOT / "docs" / "examples" / "sources")
    assert len(files) >= 2
    for path in files:
        assert all(host.endswith(".example") for host in read_source(path).match.hosts)


def test_the_schema_for_editors_is_that_of_the_models() -> None:
    """Else run: python -m tools.schemas."""
    for file in schemas.FILES:
        assert file.read_text(encoding="utf-8") == schemas.text(file)
    names = sorted(os.path.relpath(file, ROOT) for file in schemas.FILES)
    assert names == [f"resources/schemas/{name}.schema.json" for name in ("seed", "source", "task")]
