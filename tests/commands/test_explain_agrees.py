"""`scrapy urls explain` says of any link what a crawl does with it."""

from __future__ import annotations

import html
import json
import random
from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.settings import Settings

from site_spider.commands import urls
from site_spider.page.directives import absolute
from site_spider.page.links import LinkBase
from tests.in_process.engine import ScriptedHandler, crawl, page, settings_for
from tests.tasks.test_pause_and_cancel import declare

HOSTS = ["d.test", "WWW.d.test", "o.test", "b\xfccher.test", "8.8.8.8", "d.test:80", "d.test:8080", "d.test."]
PARTS = [
    "a",
    "b",
    "item",
    "old",
    "1",
    "22",
    "index.html",
    "a b",
    "\xe4",
    "%c3%a4",
    "x.pdf",
    "y.ZIP",
    "2024-01",
    "..",
    "",
]
PARTS += [".", ";jsessionid=AB12", "c++", "q{1}", "'", '"', "\xe9;v=1", "(S(abcdefgh12345678))"]
QUERIES = [
    "",
    "",
    "?utm_source=1",
    "?id=2&UTM_x=1",
    "?id=2",
    "?sort=a b&id=2",
    "?PHPSESSID=1",
    "?ref=\xe4&x_1",
    "?a&b",
    "?b&a",
]
PATTERNS = [
    "/item/",
    r"\?sort=",
    r"\.pdf$",
    "old",
    "(?i)ZIP",
    "^https://",
    r"/\d+",
    "%C3%A4",
    "/a/a",
    "b",
    "*.pdf",
    "http://d.test/item",
]
PAGE = "http://www.d.test/seed-page"


def some_url(chance: random.Random) -> str:
    parts = [chance.choice(PARTS) for _ in range(chance.choice([0, 1, 1, 2, 3, 6, 22]))]
    path = "/".join(parts * chance.choice([1, 1, 1, 3]))
    return f"{chance.choice(['http', 'https'])}://{chance.choice(HOSTS)}/{path}{chance.choice(QUERIES)}"


def some_rules(chance: random.Random, folder: Path) -> dict[str, Any]:
    """Settings, and a task t in half of the cases."""

    def patterns() -> list[str]:
        return chance.sample(PATTERNS, 2)

    def shape() -> dict[str, Any]:
        fields = {"deny": patterns(), "allow": patterns(), "repeats": 2, "segments": 3, "length": 30}
        return {name: value for name, value in fields.items() if chance.random() < 0.3}

    names = chance.sample(["*", "*.d.test", "d.test", "www.d.test", "8.8.8.8", "xn--bcher-kva.test"], 2)
    (folder / "rules.yaml").write_text(json.dumps({name: shape() for name in names}))
    settings = {
        "SITE_URL_RULES": str(folder / "rules.yaml"),
        "SITE_URL_DENY": json.dumps(patterns()),
        "SITE_URL_ALLOW": json.dumps(patterns()),
        "URLLENGTH_LIMIT": 50,
    }
    settings = {name: value for name, value in settings.items() if chance.random() < 0.4}
    settings["SITE_DROP_PARAMS"] = chance.choice(["tracking", "none", "tracking,ref,x_*", "ref"])
    settings["SITE_LINK_SCOPE"] = chance.choice(["host", "domain", "any", "any"])
    task = {"allow": patterns()[:1], "deny": patterns()[:1], "depth": 0, "scope": "any", "drop_params": ["id"]}
    task = {name: value for name, value in task.items() if chance.random() < 0.3}
    for name in ("allow", "deny"):  # of tasks all are patterns
        task[name] = [pattern for pattern in task.get(name, []) if not pattern.startswith("*")]
    if chance.random() < 0.5:
        declare(folder, **task)
        settings["task_id"] = "t"
    return settings


def explained(settings: Settings, url: str, task_id: str | None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    command = urls.Command()
    command.settings = settings
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(urls, "print_json", said.append)
    command.work(Namespace(args=["explain", url], task_id=task_id, seed=PAGE, depth=1, format="json"))
    return said[0]


@pytest.mark.parametrize("number", range(5))
def test_of_links_that_are_taken_each_is_fetched_once_and_of_others_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    chance = random.Random(number)
    settings = some_rules(chance, tmp_path)
    task_id = settings.pop("task_id", None)
    links = {some_url(chance) for _ in range(200)}
    body = "".join(f'<a href="{html.escape(url)}">' for url in links)
    fetched: set[str] = set()

    async def answer(_: object, request: Request) -> Response:
        fetched.add(request.url)
        return page(request, body if request.url == PAGE else "")

    monkeypatch.setattr(ScriptedHandler, "download_request", answer)
    monkeypatch.setattr(urls.socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("8.8.4.4", 0))])
    asked = settings_for(tmp_path, **settings)
    said = {url: explained(asked, url, task_id, monkeypatch) for url in links}
    crawl(tmp_path, [{"url": PAGE, "meta": {"task_id": "t"}}], **settings)
    alike = defaultdict[str, set[str]](set)
    for url, found in said.items():
        link = absolute(url, LinkBase.parse("", "utf-8")) or ""
        if found["refused_by"]["link"] is not None:
            assert link not in fetched, found
        else:
            alike[next(check["says"] for check in found["checks"] if check["name"] == "compared as")].add(link)
    assert {form: len(some & fetched) for form, some in alike.items()} == dict.fromkeys(alike, 1)
