"""Source files: what stands in them, where each mistake is, which pages are whose, and how changed ones are taken."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from site_spider.errors import ConfigError
from site_spider.page.url import host_of
from site_spider.sources.extraction import SourcePage, extract
from site_spider.sources.library import (
    MAX_FILE_BYTES,
    BadSource,
    Library,
    SourceFolder,
    parse_source,
    read_source,
    source_files,
)
from site_spider.sources.model import ItemField, ItemRule, LinkRule, Match, Pagination, Requests, Source, ValueStep
from tests.commands.project import ROOT
from tests.growth import CONSTANT, assert_grows
from tests.in_process import virtual_time
from tools import schemas

PATH = Path("shop.yaml")
MATCH = b"match: {hosts: [shop.test]}\n"


def mistakes(raw: bytes) -> list[tuple[int, int, str]]:
    with pytest.raises(BadSource) as bad:
        parse_source(raw, PATH)
    return [tuple(mistake) for mistake in bad.value.mistakes]


def test_every_mistake_has_its_place() -> None:
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
        (b"[" * 500, (1, 1), "is nested too deeply"),
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


# --- Which source a page belongs to, and how changed files are taken


def library(**texts: str) -> Library:
    return Library({Path(name): parse_source(text.encode(), Path(name)) for name, text in texts.items()})


def matched(found: Library, url: str) -> str | None:
    source = found.match(url, host_of(url))
    return None if source is None else source.name


def test_hosts_of_a_source_are_few_questions_however_many_there_are() -> None:
    """Of a page with 10,000 links; all of them together took seconds of the event loop."""
    names = ["shop.test", "*.deep.test", *(f"*.h{number}.test" for number in range(998))]
    match = Match(hosts=names)  # type: ignore[call-arg]
    hosts = ("shop.test", "www.shop.test", "deep.test", "a.deep.test", "a.b.deep.test", "xdeep.test", "h1.test", "")
    assert [host for host in hosts if match.has_host(host)] == ["shop.test", "a.deep.test", "a.b.deep.test"]

    def asked(size: int) -> Callable[[], bool]:
        few = Match(hosts=names[:size])  # type: ignore[call-arg]
        return lambda: any(few.has_host(f"x{number}.test") for number in range(1_000))

    assert_grows(asked, 250, CONSTANT)


def test_a_page_belongs_to_the_nearest_source_whose_url_patterns_fit() -> None:
    found = library(
        wide="match: {hosts: ['*.test']}",
        shop="match: {hosts: ['*.shop.test']}",
        books="match: {hosts: [www.shop.test], urls: ['/books/']}",
        off="match: {hosts: [www.shop.test]}\nenabled: false",
    )
    assert matched(found, "http://www.shop.test/books/1") == "books"
    assert matched(found, "http://www.shop.test/music/1") == "shop"
    assert matched(found, "http://shop.test/") == "wide"
    assert matched(found, "http://test/") is None
    assert matched(found, "http://www.shop.example/") is None
    assert matched(found, "nothing") is None
    assert found.named("off") is None
    assert found.named("shop") is not None


def write(path: Path, text: str) -> None:
    """At a moment of its own, as an editor does."""
    path.write_text(text)
    moment = path.stat().st_mtime_ns + 1_000_000 * (1 + int(path.stat().st_size))
    os.utime(path, ns=(moment, moment))


def names(folder: SourceFolder) -> set[str]:
    return {source.description for source in folder.library.enabled}


def test_a_changed_file_is_taken_and_a_bad_one_is_said_once(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    write(file, "match: {hosts: [a.test]}\ndescription: one")
    folder = SourceFolder.open(tmp_path, must_exist=True)
    assert names(folder) == {"one"}
    write(file, "match: {hosts: [a.test]}\ndescription: the second")
    assert folder.look() == []
    assert names(folder) == {"the second"}
    before = folder.library
    write(file, "match: [")
    (bad,) = folder.look()
    assert str(bad).startswith(f"{file}:1:")
    assert folder.look() == []
    assert folder.library is before
    write(tmp_path / "new.yaml", "match: {hosts: [b.test]}\ndescription: new")
    assert folder.look() == []
    assert names(folder) == {"the second", "new"}
    write(file, "match: {hosts: [a.test]}\ndescription: the third one")
    assert folder.look() == []
    assert names(folder) == {"the third one", "new"}
    file.unlink()
    assert folder.look() == []
    assert names(folder) == {"new"}
    (tmp_path / "new.yaml").unlink()
    tmp_path.rmdir()
    assert folder.look() == []
    assert names(folder) == set()


def test_a_file_that_cannot_be_taken_is_said_once_and_the_last_good_one_stays(tmp_path: Path) -> None:
    file = tmp_path / "sources" / "shop.yaml"
    file.parent.mkdir()
    folder = SourceFolder(file.parent)

    def becomes(change: Callable[[], object], said: str) -> None:
        shutil.rmtree(file.parent)
        file.parent.mkdir()
        write(file, "match: {hosts: [a.test]}\ndescription: good")
        assert folder.look() == []
        file.unlink()
        change()
        (bad,) = folder.look()
        assert said in str(bad)
        assert folder.look() == []
        assert names(folder) == {"good"}

    def becomes_a_file() -> None:
        file.parent.rmdir()
        file.parent.write_text("")

    becomes(lambda: os.mkfifo(file), "a named pipe")
    becomes(file.mkdir, "a folder")
    becomes(lambda: file.symlink_to(file), "Too many levels")
    becomes(lambda: file.symlink_to("nothing"), "No such file")
    becomes(lambda: write(file, "description: 1" + ":59" * 80_000), "match: is missing")
    becomes(becomes_a_file, "the folder cannot be listed: Not a directory")


def test_a_file_is_read_again_when_only_its_rights_have_changed(tmp_path: Path, monkeypatch: Any) -> None:
    file = tmp_path / "shop.yaml"
    write(file, "match: {hosts: [a.test]}\ndescription: good")
    moment = file.stat().st_mtime_ns
    folder = SourceFolder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
        (bad,) = folder.look()
    assert "Permission denied" in str(bad)
    file.chmod(0o640)
    os.utime(file, ns=(moment, moment))
    assert folder.look() == []
    assert names(folder) == {"good"}


def test_a_change_that_cannot_be_read_at_once_is_said_once_and_taken_later(tmp_path: Path, monkeypatch: Any) -> None:
    file = tmp_path / "shop.yaml"
    write(file, "match: {hosts: [a.test]}\ndescription: good")
    folder = SourceFolder.open(tmp_path, must_exist=True)
    write(file, "match: {hosts: [a.test]}\ndescription: changed")
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", Mock(side_effect=OSError(24, "Too many open files")))
        said = [[*map(str, folder.look())] for _ in range(2)]
    assert ["Too many open files" in str(one) for one in said] == [True, False]
    assert names(folder) == {"good"}
    assert folder.look() == []
    assert names(folder) == {"changed"}


def test_a_name_stands_for_one_source(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        write(tmp_path / name, f"name: shop\nmatch: {{hosts: [{name}]}}\ndescription: {name}")
    folder = SourceFolder(tmp_path)
    (bad,) = folder.look()
    assert bad.mistakes[0].message == "the name shop is that of a.yaml, which counts"
    assert folder.look() == []
    assert names(folder) == {"a.yaml"}


def test_a_start_with_a_bad_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", "match: 1")
    write(tmp_path / "b.yaml", "mtach: 1")
    with pytest.raises(ConfigError, match=r"\A.*2 files cannot be used: .*a\.yaml:1:1: match.*; .*b\.yaml:1:1: m.*\Z"):
        SourceFolder.open(tmp_path, must_exist=True)
    with pytest.raises(ConfigError, match="no such folder"):
        SourceFolder.open(tmp_path / "none", must_exist=True)
    assert not SourceFolder.open(tmp_path / "none", must_exist=False).library.enabled


def test_files_are_followed_within_seconds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = SourceFolder.open(tmp_path, must_exist=True)

    async def run() -> None:
        following = asyncio.create_task(folder.follow())
        write(tmp_path / "shop.yaml", "match: {hosts: [a.test]}\ndescription: new")
        while not folder.library.enabled:
            await asyncio.sleep(0.01)
        write(tmp_path / "shop.yaml", "match: {hsts: [a.test]}")
        while not caplog.records:
            await asyncio.sleep(0.01)
        following.cancel()

    virtual_time.run(asyncio.wait_for(run(), 300))
    assert names(folder) == {"new"}
    assert "what it said before counts: " in caplog.text
    assert "\n" not in caplog.messages[-1]


# --- the examples of docs/sources.md ---------------------------------------------------------------------

TEXT = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    return _BLOCK.findall(TEXT)


def items(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_example_is_one_that_works() -> None:
    kinds = [kind for kind, _ in blocks()]
    assert kinds == ["yaml", "html", "json", "yaml", "json", "json", "yaml"]
    texts = [text for _, text in blocks()]
    shop, api, lists = (parse_source(texts[n].encode(), Path("shop.yaml")) for n in (0, 3, 6))
    assert extract(shop, SourcePage("https://shop.example/product/7", texts[1])).items == items(texts[2])
    found = extract(api, SourcePage("https://api.shop.example/v1/products", texts[4]))
    assert found.items == items(texts[5])
    assert [link.url for link in found.links] == ["https://api.shop.example/v1/products?page=2"]
    assert lists.follow is not None
    assert lists.follow[0].to == "details"


def test_every_key_is_named() -> None:
    models = Source, Match, Requests, LinkRule, Pagination, ItemRule, ItemField, ValueStep
    keys = {field.alias or name for one in models for name, field in one.model_fields.items()}
    prose = _BLOCK.sub("", TEXT)
    words = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]+)`", prose))))
    assert keys - words == set()
