"""Source files: what stands in them, and where each mistake is."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from site_spider.sources.library import MAX_FILE_BYTES, BadSource, parse_source, read_source, source_files
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
        (b"[" * 2_000, (1, 1), "is nested too deeply"),
        (b"a: 1\nb: 2\na: 3", (3, 1), "the key 'a' stands here twice"),
        (b"a: !!python/object:os.system x", (1, 4), "the tag"),
        (b"", (1, 1), "must be a mapping"),
        (b"- a", (1, 1), "must be a mapping"),
        (b"{[a]: 1}", (1, 2), "a key must be a text"),
        (b"a: &a [*a]", (1, 1), "is nested too deeply"),
        (b"a: " + b"9" * 5000, (1, 4), "'9999"),
        (b"items: []", (1, 1), "match: is missing"),
        (b"match: {hosts: []}", (1, 9), "match.hosts: must have at least 1"),
        (MATCH + b"items: [{fields: {_page: {css: a}}}]", (2, 19), "items.0.fields._page"),
        (MATCH + b"request: {headers: {Host: evil.test}}", (1, 1), "request.headers: Host cannot be set here"),
        (MATCH + b'request: {headers: {A: "x\\r\\ny"}}', (2, 21), "request.headers.A"),
        (MATCH + b"follow: [{to: 'a b'}]", (2, 11), "follow.0.to"),
        (MATCH + b"items: [{fields: {a: {xpath: 're:test(., \"a\")'}}}]", (2, 23), "items.0.fields.a.xpath"),
        (MATCH + b"items: [{fields: {a: {xpath: 'nothing()'}}}]", (2, 23), "items.0.fields.a.xpath"),
        (MATCH + b"items: [{fields: {a: {jmespath: 'a['}}}]", (2, 23), "items.0.fields.a.jmespath"),
        (MATCH + b"pagination: {script: 'b(@)'}", (2, 14), "pagination.script: 'b(@)' is no JMESPath: there is no"),
        (MATCH + b"pagination: {script: '&a'}", (2, 14), "pagination.script: '&a' is no JMESPath: & stands in map"),
        (MATCH + b"pagination: {script: 'sort_by(@, &a)[{a: &b}]'}", (2, 14), "pagination.script: 'sort_by("),
        (MATCH + b"items: [{fields: {a: {regex: '" + b"(a{1000}){1000}" + b"'}}}]", (2, 23), "items.0.fields.a"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_cannot_be_used(raw: bytes, place: tuple[int, int], said: str) -> None:
    line, column, message = mistakes(raw)[0]
    assert message.startswith(said)
    assert (line, column) == place


FIELD = "items: [{fields: {a: {css: a, %s}}}]"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("hosts: [a.test]", "hosts: this key is not known here; hosts belongs in match"),
        ("delai: 1", "delai: this key is not known here; delay belongs in request"),
        ("request: {zzz: 1}", "request.zzz: this key is not known; known here: concurrency, cookies, delay, "
                              "headers, robots, seed_headers"),
        (FIELD % "defalt: x", "items.0.fields.a.defalt: this key is not known; did you mean default?"),
        ("description: 1.5", "description: must be a text: put 1.5 in quotes"),
        ("description: [a]", "description: must be a text, not a list"),
        ("description: true", "description: must be a text: put true in quotes"),
        ("enabled: maybe", "enabled: must be true or false, not 'maybe'"),
        ("items: x", "items: must be a list, not 'x'"),
        ("request: {delay: true}", "request.delay: must be a number, not true"),
        ("request: {delay: 5000}", "request.delay: must be 3600 or less, not 5000"),
        ("request: {headers: {a b: c}}", "request.headers.a b: 'a b' is not taken: up to 100 characters that "
                                         "HTTP has for a name"),
        ("pagination: {css: a, limit: x}", "pagination.limit: must be a whole number, not 'x'"),
        ("request: x", "request: must be a mapping of keys to values, not 'x'"),
        (FIELD % "type: txt", "items.0.fields.a.type: must be 'text', 'integer', 'number', 'boolean' or "
                              "'any', not 'txt'"),
        (FIELD % "default: 5", "items.0.fields.a: default: 5 does not fit the type, which is text"),
        (FIELD % "type: integer, default: '5'", "items.0.fields.a: default: '5' does not fit the type, which "
                                                "is integer"),
        (FIELD % "type: number, default: true", "items.0.fields.a: default: true does not fit the type, "
                                                "which is number"),
        (FIELD % "list: true, default: a", "items.0.fields.a: default: must be a list, because list is true"),
        (FIELD % "list: true, default: [1]", "items.0.fields.a: default: 1 does not fit the type, which is "
                                             "text"),
        (FIELD % "default: .inf", "'.inf' is no number that can be used"),
        (FIELD % "default: 1e999", "'1e999' is no number that can be used"),
        (FIELD % "then: [{date: YYYY-MM-DD}]", "items.0.fields.a.then.0.date: 'YYYY-MM-DD' has no directive; "
                                               "write one such as %d.%m.%Y"),
        (FIELD % "then: [{date: '100%%'}]", "items.0.fields.a.then.0.date: '100%%' has no directive; write "
                                            "one such as %d.%m.%Y"),
        (FIELD % "then: [{strip: 1}]", "items.0.fields.a.then.0.strip: takes no value"),
    ],
)  # fmt: skip
def test_mistakes_are_said_in_words_of_ours(written: str, said: str) -> None:
    ((_, _, message),) = mistakes(MATCH + written.encode())
    assert message == said


@pytest.mark.parametrize("unusable", ["%Y%Y", "%Q", "%-d.%m", "%d%", "%Y %y %"])
def test_a_date_format_that_would_raise_on_each_page_is_refused(unusable: str) -> None:
    ((_, _, message),) = mistakes(MATCH + (FIELD % f"then: [{{date: '{unusable}'}}]").encode())
    assert "cannot be used to read dates" in message


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("https://Shop.Example/a?b", "; write shop.example"),
        ("//shop.example:80", ", such as shop.example"),
        ("shop.example:8080/", "; write shop.example"),
        ("*.SHOP.example", "; write *.shop.example"),
        ("bücher.example", "; write xn--bcher-kva.example"),
        ("*", ", such as shop.example"),
        ("a b", ", such as shop.example"),
    ],
)
def test_a_host_that_is_none_is_named_with_what_to_write(written: str, said: str) -> None:
    ((_, _, message),) = mistakes(f"match: {{hosts: ['{written}']}}".encode())
    assert message == f"match.hosts.0: {written!a} is no host name{said}"


def test_values_are_read_as_yaml_1_2_has_them() -> None:
    """`yes` is a text, except where true or false is asked for; so are times, dates and 1_000."""
    source = parse_source(
        MATCH + b"name: other\nenabled: off\ndescription: yes\nitems: [{fields: {a: {constant: [yes, no, 1:59:59, "
        b"2024-01-01, 1_000, 010, 0x10, 1e3, true, ~, .5]}, b: {css: b, required: yes}}}]",
        PATH,
    )
    assert (source.name, source.enabled, source.description) == ("other", False, "yes")
    fields = source.items[0].fields
    assert fields["a"].constant == [
        "yes", "no", "1:59:59", "2024-01-01", "1_000", 10, 16, 1000.0, True, None, 0.5,
    ]  # fmt: skip
    assert fields["b"].required is True


HOSTILE = {
    "base 60": b"description: 1" + b":59" * 80_000,
    "digits": b"description: " + b"9" * 200_000,
    "nested flow": b"[" * 200_000,
    "nested block": b"- " * 100_000,
    "deep constant": MATCH + b"items: [{fields: {a: {constant: " + b"[" * 300 + b"]" * 300 + b"}}}]",
    "long aliases": MATCH + b"items: [{fields: {a: {constant: [&a " + b"x" * 9_999 + b", *a" * 999 + b"]}}}]",
    "itself": MATCH + b"items: &a [{fields: {a: {constant: *a}}}]",
    "encodings": b"\xff\xfe\xd8\xd8", "half a character": MATCH + b"description: \xc3", "nul": b"a: \0",
    "surrogate": MATCH + b'description: "\\ud800"', "merge": MATCH + b"<<: {a: b}",
    "tag": b"!!binary a: !!set b", "documents": b"---\na: b\n---\nc: d", "int": b"a: !!int x",
    "null key": b"? \n: 1", "half": MATCH[:-4],
}  # fmt: skip


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_no_file_makes_it_fail(raw: bytes, tmp_path: Path) -> None:
    """What is wrong is short, and can be written anywhere."""
    file = tmp_path / "shop.yaml"
    file.write_bytes(raw)
    with pytest.raises(BadSource) as bad:
        read_source(file)
    assert len(str(bad.value).encode()) < 2000


def test_what_is_no_ordinary_file_is_refused_without_opening_it(tmp_path: Path) -> None:
    """A named pipe would be waited for; a link to a file is one."""
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "nowhere.yaml").symlink_to("nothing")
    (tmp_path / "device.yaml").symlink_to("/dev/zero")
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket.yaml"))
    said = {}
    for path in source_files(tmp_path):
        with pytest.raises(BadSource) as bad:
            read_source(path)
        said[path.stem] = bad.value.mistakes[0].message.removeprefix("cannot be read: ")
    assert said == {
        "device": "it is a device, and no ordinary file",
        "folder": "it is a folder, and no ordinary file",
        "large": f"is larger than {MAX_FILE_BYTES} bytes",
        "loop": "Too many levels of symbolic links",
        "nowhere": "No such file or directory",
        "pipe": "it is a named pipe, and no ordinary file",
        "socket": "it is a socket, and no ordinary file",
    }
    (tmp_path / "good.txt").write_bytes(MATCH)
    (tmp_path / "good.yaml").symlink_to("good.txt")
    assert read_source(tmp_path / "good.yaml").name == "good"


def test_aliases_do_not_multiply() -> None:
    """Each of these lines repeats the one before it nine times."""
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    ((_, _, message),) = mistakes("\n".join(lines).encode())
    assert message == "has more than 20000 values"


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
