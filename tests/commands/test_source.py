"""`scrapy source`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from site_spider.commands.source import Command
from site_spider.sources.extraction_process import PageBody
from tests.commands.project import Project
from tests.in_process.extraction import in_a_thread

SOURCE = """
match: {hosts: [shop.test]}
follow:
  - {allow: ['/book/'], to: details}
pagination: {css: a.next}
items: [{fields: {title: {css: h1, required: true}}}]
"""
PAGE = "<h1>A\x1b[31m</h1><a href=/book/1>1</a><a href=/other>2</a><a class=next href='?p=2'>n</a>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.yaml").write_text(SOURCE)
    (tmp_path / "page.html").write_text(PAGE)
    return tmp_path


@in_a_thread()
def test_check_shows_what_a_page_gives(project: Project, folder: Path) -> None:
    """As a table, and as JSON; what comes from the page cannot control the terminal."""
    arguments = ("check", str(folder / "shop.yaml"), str(folder / "page.html"), "--url", "http://shop.test/list")
    ran = project.direct("source", *arguments)
    assert ran.returncode == 0
    assert ran.stderr == ""
    assert "\x1b" not in ran.stdout
    assert ran.stdout.splitlines()[:3] == [
        "LINK                       BY          TO",
        "http://shop.test/book/1    follow.0    details",
        "http://shop.test/list?p=2  pagination  -",
    ]
    assert "1 item" in ran.stdout.splitlines()
    document = json.loads(project.direct("source", *arguments, "--format", "json").stdout)
    assert document["items"] == [{"title": "A\x1b[31m"}]
    assert [link["to"] for link in document["links"]] == ["details", None]


def test_check_names_file_and_line_of_every_mistake(project: Project, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("match: {hosts: [a.test]}\nfolow: []\nitems: 5\n")
    ran = project.direct("source", "check", str(file))
    assert ran.returncode == 1
    assert ran.stderr.splitlines() == [
        f"scrapy source: {file}:2:1: folow: this key is not known; did you mean follow?",
        f"scrapy source: {file}:3:1: items: must be a list, not 5",
    ]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (SOURCE, "an item is left out: title is missing"),
        ("match: {hosts: [shop.test]}\nfollow: [{allow: [nowhere]}]", "nothing was found in the page as"),
    ],
)
@in_a_thread()
def test_check_says_what_is_not_found(project: Project, folder: Path, source: str, said: str) -> None:
    """A required field that is missing is exit code 1, and so is a page that gives nothing."""
    (folder / "shop.yaml").write_text(source)
    (folder / "page.html").write_text("<a href=/>")
    ran = project.direct("source", "check", str(folder / "shop.yaml"), str(folder / "page.html"))
    assert (ran.returncode, ran.stderr.partition(" http")[0].strip()) == (1, f"scrapy source: {said}")
    assert "0 items" in ran.stdout


def test_check_of_a_file_alone(project: Project, folder: Path) -> None:
    ran = project.direct("source", "check", str(folder / "shop.yaml"))
    assert ran.stdout == f"{folder / 'shop.yaml'}: shop, no mistakes\n"
    ran = project.direct("source", "check", str(folder / "shop.yaml"), "--format", "json")
    assert json.loads(ran.stdout)["name"] == "shop"


def test_list(project: Project, folder: Path) -> None:
    """Those that can be used; of the others every mistake, and exit code 1."""
    ran = project.scrapy("source", "list", SITE_SOURCES_DIR=str(folder))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0] == f"Sources in {folder}: 1"
    assert ran.stdout.splitlines()[2].split()[:4] == ["shop", "yes", "shop.test", "1"]
    (folder / "bad.yaml").write_text("[")
    ran = project.scrapy("source", "list", "--format", "json", SITE_SOURCES_DIR=str(folder))
    assert ran.returncode == 1
    assert json.loads(ran.stdout)["name"] == "shop"
    assert f"{folder / 'bad.yaml'}:1:2:" in ran.stderr


def test_check_fetches_as_a_crawl_does(project: Project, folder: Path) -> None:
    """So private hosts stay out of reach."""
    ran = project.process("source", "check", str(folder / "shop.yaml"), "--url", "http://127.0.0.1:9/")
    assert ran.returncode == 1
    assert "127.0.0.1 has no public address" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_page_that_is_a_url_is_fetched(project: Project, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def fetch(_self: object, _source: object, url: str) -> PageBody:
        fetched.append(url)
        return PageBody(url, PAGE.encode(), "text/html")

    monkeypatch.setattr(Command, "_fetched", fetch)
    ran = project.direct("source", "check", str(folder / "shop.yaml"), "http://shop.test/list")
    assert (ran.returncode, fetched) == (0, ["http://shop.test/list"])
