"""docs/own-spiders.md word for word: its files are written into a copy of the project, its commands run."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.adapters.raw_server import Asked, answering, said
from tests.commands.project import environment
from tests.in_process.engine import ANSWERS, crawl, page
from tests.reader import ROOT, copy_of_the_project

DOCUMENT = ROOT / "docs" / "own-spiders.md"
SITE = "https://quotes.toscrape.com"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

QUOTES = """<html><title>Quotes</title>
<div class="quote"><span class="text">Simplicity is a great virtue.</span><small>Dijkstra</small>
<a class="about" href="/author/dijkstra">about</a></div>
<div class="quote"><span class="text">Short.</span><small>Hopper</small>
<a class="about" href="/author/hopper">about</a></div>
<ul><li class="next"><a href="{next}">next</a></li></ul></html>"""


def quotes(asked: Asked) -> bytes:
    """Built as the site that the document names."""
    return said(QUOTES.format(next="/page/2/" if asked.path == "/" else "").encode(), kind="text/html; charset=utf-8")


class Reader:
    """Somebody who does what the document says, one block after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        copy_of_the_project(folder)
        (folder / "tests").mkdir()
        self.environment = environment(folder / "data", SITE_ALLOW_PRIVATE_HOSTS="true")

    def follow(self, site: str) -> dict[str, str]:
        """Each block of the shell with what it printed."""
        printed = {}
        for language, text in _BLOCK.findall(DOCUMENT.read_text(encoding="utf-8")):
            block = text.replace(SITE, site)
            if language == "python":
                self._write(block)
            else:
                assert language == "sh", f"a block in {language} is run by nobody"
                printed[text] = self.run(block)
        return printed

    def run(self, commands: str) -> str:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert ran.returncode == 0, f"{commands}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def items_of(self, spider: str) -> list[dict[str, Any]]:
        command = f".venv/bin/scrapy items --spider {spider} --format json"
        return [json.loads(line) for line in self.run(command).splitlines()]

    def _write(self, block: str) -> None:
        path = self.folder / block.partition("\n")[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(block)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def own_spiders(reader: Reader, printed: dict[str, str]) -> Iterator[None]:
    """Modules of the package here, as in the copy."""
    spiders = import_module("site_spider.spiders")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spiders, "__path__", [*spiders.__path__, str(reader.folder / "site_spider" / "spiders")])
        yield


@pytest.fixture(scope="module")
def printed(reader: Reader) -> Iterator[dict[str, str]]:
    with answering(quotes) as site:
        yield reader.follow(site)


def of(printed: dict[str, str], part: str) -> str:
    """What the block with this part printed."""
    (found,) = (output for block, output in printed.items() if part in block)
    return found


def test_the_twelve_lines_are_twelve() -> None:
    """As the heading says."""
    first = next(text for language, text in _BLOCK.findall(DOCUMENT.read_text()) if language == "python")
    assert len(first.strip().splitlines()) <= 12


def test_every_block_runs(printed: dict[str, str], reader: Reader) -> None:
    """And shows what the text says of it."""
    first = of(printed, "scrapy items --spider quotes")
    assert "Simplicity" in first
    assert "Results: 2" in first
    lines = of(printed, "cat quotes.jsonl").splitlines()
    feed = [json.loads(line) for line in lines if line.startswith("{")]
    assert [item["author"] for item in feed[:2]] == ["Dijkstra", "Hopper"]
    assert all("url_id" not in item for item in feed)
    assert "1 passed" in of(printed, "pytest")
    assert "long_quotes" in of(printed, "scrapy list")
    assert "LAG" in of(printed, "progress --spider news")
    assert {item["_page"]["url"].rpartition("/tag/")[2] for item in reader.items_of("tags")} == {"humor/"}


@pytest.mark.parametrize(
    ("spider", "expected"),
    [
        ("authors", [{"item_id": "dijkstra", "name": "Dijkstra"}, {"item_id": "hopper", "name": "Hopper"}]),
        ("titles", [{"title": "Quotes", "task": "spring", "colour": "red"}]),
        ("details", [{"name": "dijkstra"}, {"name": "hopper"}]),
        ("rules", [{"name": "dijkstra"}, {"name": "hopper"}]),
        ("maps", [{"name": "hopper"}]),
        ("long_quotes", [{"text": "Simplicity is a great virtue.", "author": "Dijkstra"}]),
    ],
)
def test_the_other_spiders_do_what_the_text_says(
    spider: str, expected: list[dict[str, Any]], own_spiders: None, tmp_path: Path
) -> None:
    """Crawled in this process."""
    module = import_module(f"site_spider.spiders.{spider}")
    (kind,) = (one for one in vars(module).values() if getattr(one, "name", None) == spider)
    site = "http://quotes.test"
    entries = "".join(f"<url><loc>{site}{path}</loc></url>" for path in ("/author/hopper", "/"))
    ANSWERS["/sitemap.xml"] = lambda request: page(
        request, f"<urlset>{entries}</urlset>", Content_Type="application/xml"
    )
    ANSWERS["/last"] = lambda request: page(request, QUOTES.format(next=""))
    for name in ("dijkstra", "hopper"):
        ANSWERS[f"/author/{name}"] = partial(page, body=f"<h3>{name}</h3>")
    seed = {
        "url": f"{site}/{'sitemap.xml' if spider == 'maps' else 'last'}",
        "meta": {"task_id": "spring", "colour": "red"},
    }
    crawled = crawl(tmp_path, [seed], kind, DEPTH_LIMIT=1)
    found = [
        {name: value for name, value in item.items() if name != "_page"}
        for item in crawled.items.values()
        if spider != "titles" or item["_page"]["depth"] == 0
    ]
    assert sorted(found, key=str) == sorted(expected, key=str)
