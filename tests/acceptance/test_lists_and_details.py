"""The three stages of docs/sources.md: lists, details and comments, each a service with a topic of its own."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import pytest

from tests.adapters.raw_server import Asked, answering, said
from tests.commands.project import ROOT
from tests.real_servers import make_topic
from tools.deployment.deployment import Deployment, Run, wait_until

pytestmark = pytest.mark.servers

PRODUCTS, SIZE, NEW = 60, 20, 5
KILLED_AT = {"lists": 3, "details": 25, "comments": 12}  # the request that its process does not outlive


class Pages:
    """Lists of products, of which those with an even number have comments."""

    listed: ClassVar[list[int]] = [*range(PRODUCTS)]
    asked: ClassVar[list[str]] = []
    answered: ClassVar[set[str]] = set()
    early: ClassVar[list[str]] = []  # comments before their detail
    victims: ClassVar[dict[str, Run]] = {}

    def page(self, asked: Asked) -> Iterator[bytes]:
        stage = stage_of(asked.path)
        self.asked.append(asked.path)
        if stage == "comments" and asked.path.replace("comments", "product") not in self.answered:
            self.early.append(asked.path)
        if stage in self.victims and sum(stage_of(path) == stage for path in self.asked) >= KILLED_AT[stage]:
            os.killpg(self.victims.pop(stage).process.pid, signal.SIGKILL)  # with the script that would start it again
        self.answered.add(asked.path)  # before anybody can read it
        yield said(self._body(asked.path), kind="text/html")

    def _body(self, path: str) -> bytes:
        at = urlsplit(path)
        number = int(at.query or at.path.rpartition("/")[2] or 0)
        if at.path == "/":
            shown, end = self.listed[number * SIZE :][:SIZE], (number + 1) * SIZE
            links = "".join(f'<p class=product><a href="/product/{n}">p</a></p>' for n in shown)
            more = f'<a class=next href="/?{number + 1}">next</a>' if end < len(self.listed) else ""
            return (links + more).encode()
        if at.path.startswith("/product/"):
            comments = f'<a class=comments href="/comments/{number}">c</a>' if number % 2 == 0 else ""
            return f"<h1>{number}</h1><i class=id>p{number}</i>{comments}<a href=/else>x</a>".encode()
        return f"<div class=comment><i class=id>c{number}</i><p>fine</p></div><a href=/else>x</a>".encode()


def stage_of(path: str) -> str:
    return {"product": "details", "comments": "comments"}.get(path.split("/")[1], "lists")


@pytest.fixture
def url() -> Iterator[str]:
    with answering(Pages().page) as address:
        yield address


@pytest.fixture
def stages(tmp_path: Path, kafka_brokers: str) -> Iterator[dict[str, Deployment]]:
    """With one local store, and the file of the document with their topics."""
    text = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
    source = text.partition("## Lists, details and comments")[2].split("```")[1].removeprefix("yaml\n")
    source = source.replace("shop.example", "127.0.0.1")
    settings = {
        "SITE_KAFKA_BROKERS": kafka_brokers,
        "SITE_SINKS": "local",
        "SITE_SOURCES_DIR": str(tmp_path / "sources"),
    }
    found = {}
    with ExitStack() as stack:
        for name in KILLED_AT:
            found[name] = made = stack.enter_context(closing(Deployment(tmp_path, dict(settings))))
            make_topic(kafka_brokers, made.topic, 2)
            source = source.replace(f"to: {name}", f"to: {made.topic}")
        (tmp_path / "sources").mkdir()
        (tmp_path / "sources" / "shop.yaml").write_text(source)
        yield found


def make_old(store: Path) -> None:
    """What is stored counts as known a minute later, for which nobody waits."""
    with closing(sqlite3.connect(store, timeout=300)) as connection, connection:
        long_ago = "2026-01-01T00:00:00.000+00:00"
        connection.execute("UPDATE results SET document = json_set(document, '$.fetched_at', ?)", [long_ago])


def test_lists_details_and_comments_are_three_services(
    stages: dict[str, Deployment], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is killed in the middle; then one product is fetched again, with its comments, and the list is."""

    def start(name: str) -> Run:
        return stages[name].start("-t", stages[name].topic, "-g", stages[name].group)

    def seed(name: str, path: str, **meta: str) -> None:
        stages[name].produce([(None, json.dumps({"url": url + path, "meta": meta}).encode())])

    def wait() -> None:
        wait_until(lambda: all(stage.is_done() for stage in stages.values()), 300, "all stages")

    Pages.victims.update({name: start(name) for name in stages})
    seed("lists", "/")  # not before each can be killed
    for name in stages:
        wait_until(lambda name=name: name not in Pages.victims, 300, f"the kill of {name}")
        start(name)
    wait()
    details, comments = (
        {f"/{kind}/{n}" for n in range(0, PRODUCTS, step)} for kind, step in (("product", 1), ("comments", 2))
    )
    assert {*Pages.asked} == {"/", *(f"/?{n}" for n in range(1, PRODUCTS // SIZE)), *details, *comments}
    assert Pages.early == []
    stored = stages["lists"].documents()
    assert sorted(document["url"].removeprefix(url) for document in stored.values()) == sorted({*Pages.asked})
    assert {document["status"] for document in stored.values()} == {200}
    items = {path.replace("/product/", "p").replace("/comments/", "c") for path in details | comments}
    assert stages["lists"].items().keys() == items
    Pages.asked.clear()
    seed("details", "/product/8", task_id="again")
    wait_until(lambda: "/comments/8" in Pages.asked, 300, "its comments")
    wait()
    assert Pages.asked == ["/product/8", "/comments/8"]
    assert len(stages["lists"].documents()) == len(stored) + 2  # of the new task
    assert stages["lists"].items().keys() == items
    Pages.asked.clear()
    monkeypatch.setattr(Pages, "listed", [*range(PRODUCTS, PRODUCTS + NEW), *Pages.listed])
    make_old(tmp_path / "data" / "results.sqlite")
    seed("lists", "/")
    wait_until(lambda: "/?1" in Pages.asked, 300, "the second page")
    wait()
    new = {f"/{kind}/{n}" for kind, step in (("product", 1), ("comments", 2)) for n in Pages.listed[:NEW:step]}
    assert {path for path in Pages.asked if stage_of(path) == "lists"} == {"/", "/?1"}
    assert {*Pages.asked} >= new
    assert [stage.dead_letters() for stage in stages.values()] == [[], [], []]
