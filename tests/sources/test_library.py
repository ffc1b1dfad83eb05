"""Which source a page belongs to, and how changed files are taken."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from site_spider.errors import ConfigError
from site_spider.page.url import host_of
from site_spider.sources.extraction import SourcePage, extract
from site_spider.sources.library import Library, SourceFolder, parse_source
from site_spider.sources.model import ItemField, ItemRule, LinkRule, Match, Pagination, Requests, Source, ValueStep
from tests.commands.project import ROOT
from tests.in_process import virtual_time


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
    began = time.process_time()
    assert not any(match.has_host(f"x{number}.test") for number in range(10_000))
    assert time.process_time() - began < 1


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
    """The old one stays until it is good again; a file that is gone is gone."""
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
    """Whatever takes its place: no file, a link round, or the folder cannot be listed any more."""
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


def test_a_name_stands_for_one_source(tmp_path: Path) -> None:
    """The second file of that name is said once and does not count."""
    for name in ("a.yaml", "b.yaml"):
        write(tmp_path / name, f"name: shop\nmatch: {{hosts: [{name}]}}\ndescription: {name}")
    folder = SourceFolder(tmp_path)
    (bad,) = folder.look()
    assert bad.mistakes[0].message == "the name shop is that of a.yaml, which counts"
    assert folder.look() == []
    assert names(folder) == {"a.yaml"}


def test_a_start_with_a_bad_file_is_refused(tmp_path: Path) -> None:
    """With all mistakes in one line; a missing folder counts where somebody asked for it."""
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
        write(tmp_path / "shop.yaml", "match: ")
        while not caplog.records:
            await asyncio.sleep(0.01)
        following.cancel()

    virtual_time.run(asyncio.wait_for(run(), 300))
    assert names(folder) == {"new"}
    assert "what it said before counts" in caplog.text


# --- the examples of docs/sources.md ---------------------------------------------------------------------

TEXT = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    return _BLOCK.findall(TEXT)


def items(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_example_is_one_that_works() -> None:
    """Sources; and pages with the items found in them."""
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
