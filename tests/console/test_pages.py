"""Each page as HTML and as JSON."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
import time
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.console.url_search import UrlSearch
from site_spider.errors import LogUnavailable, SeedError
from site_spider.installation import resource
from site_spider.seed.seed import seed_message
from tests.console.consoles import PAGES, Console, document, form_token
from tests.console.snapshots import host, iso, sink, snapshot, task

EVIL = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'{{7*7}}\u202e"
VENDORED = {
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs


def evil_snapshot() -> dict[str, Any]:
    failure = {
        "url": f"javascript:alert('{EVIL}')",
        "at": iso(time.time()),
        "reason": EVIL,
        "description": EVIL,
        "task_id": EVIL,
        "seed": EVIL,
    }
    return snapshot(
        at=time.time(),
        host_name=EVIL,
        slot=EVIL,
        process=f"p-{EVIL}",
        largest_hosts=[host(EVIL, 30, EVIL)],
        hosts={"waiting": 1, EVIL: 1},
        tasks={"largest": [task(EVIL, 0, 9, callback=9, **{EVIL: 2})], "others": {"tasks": 0}},
        reasons={EVIL: 30},
        newest_failures=[failure],
        sinks=[sink(EVIL, available=False)],
        pause={"cause": EVIL, "said": EVIL},
        seeds_in_flight={EVIL: 3},
    )


@pytest.fixture
def console(tmp_path: Path) -> Console:
    made = Console(tmp_path, time.time())
    made.hear(snapshot(1, at=time.time()), snapshot(2, at=time.time()))
    return made


def produce(console: Console, topic: str, value: bytes, key: bytes = b"k", **headers: str) -> None:
    producer = console.log.producer()
    producer.send(topic, key, value, [(name, text.encode()) for name, text in headers.items()]).result(300)
    producer.close()


async def test_every_page_is_there_as_html_and_as_json(console: Console) -> None:
    async with console.client() as client:
        for path in PAGES:
            page = await client.get(path)
            assert (page.status, page.content_type) == (200, "text/html")
            text = await page.text()
            assert text.count('aria-current="page"') == 1
            assert "undefined" not in text.lower()
            found = await document(client, path)
            assert (found["group"], found["page"]) == ("site_spider", path.strip("/") or "overview")
        text = await (await client.get("/")).text()  # whose headline is the conservation
        headline = re.sub(r"<[^>]+>|\s+", " ", text[text.index("<h1") : text.index("</section>")])
        assert "Every seed is accounted for" in headline
        assert re.search(r"200 *consumed *= *120 *result *\+ *20 *failure", " ".join(headline.split()))
        assert "60 in flight" in " ".join(headline.split())


async def test_no_value_of_the_web_becomes_mark_up(tmp_path: Path) -> None:
    """In a URL, a title, a failure, a host, a task, a dead letter, and in what somebody looks for."""
    console = Console(tmp_path, time.time())
    console.hear(evil_snapshot())
    produce(
        console, "seeds.dead-letters", EVIL.encode(), EVIL.encode(), error=EVIL, origin_topic=EVIL, failed_at="\u202e"
    )
    async with console.client() as client:
        for path in PAGES:
            for query in ({}, {"wanted": EVIL, "reason": EVIL, "said": EVIL, "url": EVIL, "task_id": EVIL}):
                text = await (await client.get(path, params=query)).text()
                tags = Tags(text)
                assert tags.names.count("script") == 2
                assert "img" not in tags.names
                links = [value or "" for name, value in tags.attributes if name in ("href", "src", "action")]
                assert all(link.startswith(("/", "#", "?")) for link in links), links
                assert not [name for name, _ in tags.attributes if name.startswith("on") or name == "style"]
                assert "\u202e" not in text.replace(f'value="{EVIL}"', "").replace("&#39;", "'") or query
                assert "49" not in re.findall(r"\{\{.{0,5}\}\}", unescape(text))
            shown = await (await client.get(path, params={"format": "json"})).text()
            assert json.loads(shown)
            assert "\u202e" not in shown


async def test_secrets_of_the_settings_are_not_shown(tmp_path: Path) -> None:
    console = Console(tmp_path, time.time(), secrets=("hunter2hunter2",))
    console.hear(snapshot(at=time.time(), host_name="http://user:hunter2hunter2@h.test/"))
    async with console.client() as client:
        for form in ("html", "json"):
            text = await (await client.get("/processes", params={"format": form})).text()
            assert "hunter2" not in text
            assert "***" in text


async def test_a_silent_process_is_shown_as_silent(tmp_path: Path) -> None:
    console = Console(tmp_path, time.time() - 300)
    console.hear(snapshot(1, at=time.time() - 300))
    async with console.client() as client:
        found = await document(client, "/processes")
        assert [process["life"] for process in found["processes"]] == ["silent"]
        assert found["processes"][0]["seconds_since"] >= 299
        text = await (await client.get("/")).text()
        assert "1 silent" in text


async def test_tables_can_be_searched(console: Console) -> None:
    tasks = {"largest": [task("spring", 3, 0), task("autumn", 2, 0)], "others": {"tasks": 0}}
    console.hear(snapshot(3, at=time.time(), tasks=tasks, largest_hosts=[host("a.test", 1, "delay")]))
    async with console.client() as client:
        found = await document(client, "/tasks?wanted=SPR")
        assert [row["task_id"] for row in found["tasks"]] == ["spring"]
        found = await document(client, "/hosts?reason=delay")
        assert [row["host"] for row in found["hosts"]] == ["a.test"]


async def test_chosen_dead_letters_are_put_back(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site_spider.runtime.time_ns", lambda: 10**18)  # the newest of one moment is the last
    for number in range(3):
        produce(
            console, "seeds.dead-letters", b"value-%d" % number, b"same", error="url: missing", origin_topic="seeds"
        )
    monkeypatch.undo()
    async with console.client() as client:
        letters = (await document(client, "/failures"))["dead_letters"]
        assert [letter["error"] for letter in letters] == ["url: missing"] * 3
        form = {"form_token": await form_token(client), "place": [letters[0]["place"], "nonsense", "7:99999"]}
        answer = await client.post("/failures/replay", data=form)
        assert "1 dead letter of 2 put back." in await answer.text()
        letters = (await document(client, "/failures"))["dead_letters"]
        assert sorted(letter["replayed"] for letter in letters) == [False, False, True]
    [message] = console.log.read("seeds")
    assert message.value == b"value-2"


async def test_a_url_is_found_where_it_waits(console: Console) -> None:
    key, value = seed_message("http://h.test/b?z=1&a=2", task_id="spring")
    produce(console, "seeds", value, key)
    async with console.client() as client:
        found = (await document(client, "/url", url="http://H.test/b?a=2&z=1#top", task_id="spring"))["found"]
        assert (found["state"], found["host"], found["key"]) == ("waiting", "h.test", "h.test")
        assert found["messages"][0]["place"] == f"{found['partition_name']}@0"
        other = await document(client, "/url", url="http://h.test/other")
        assert other["found"]["state"].startswith("unknown")
        assert "ftp" in (await document(client, "/url", url="ftp://h.test/"))["refused"]
        assert "url_id without a task" in await (await client.get("/url", params={"url": "http://h.test/"})).text()


@pytest.mark.parametrize("names", [{}, {"url_id": "url_id", "url": "page.url", "task_id": "job", "status": "status"}])
def test_a_result_with_an_id_of_its_producer_is_found_under_its_task(names: dict[str, str]) -> None:
    stored = {
        "url_id": "42",
        "status": 200,
        names.get("url", "url"): "http://h.test/",
        names.get("task_id", "task_id"): "a",
    }
    reader = Mock(get=Mock(return_value=None), search=Mock(return_value=[stored]))
    log = Mock(progress=Mock(return_value=[]), read=Mock(return_value=[]))
    search = UrlSearch(log, ["seeds"], "g", "seeds.dead-letters", lambda: reader, by_task=True, names=names)
    found = search.find("http://h.test/", "a")
    asked = {names.get("url", "url"): "http://h.test/", names.get("task_id", "task_id"): "a"}
    assert reader.search.call_args.kwargs["fields"] == asked
    assert (found["state"], found["results"][0]["url"]) == ("done, with a result", "http://h.test/")


async def test_one_url_is_looked_for_at_a_time(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search reads megabytes."""
    under_way: list[str] = []
    found_most: list[int] = []
    go_on = threading.Event()

    def find(_search: UrlSearch, url: str, _task_id: str | None) -> Any:
        under_way.append(url)
        found_most.append(len(under_way))
        go_on.wait(300)
        under_way.remove(url)
        raise SeedError("enough")

    monkeypatch.setattr(UrlSearch, "find", find)
    async with console.client() as client:
        searches = [asyncio.create_task(client.get("/url", params={"url": f"http://{n}.test/"})) for n in range(2)]
        while not under_way:
            await asyncio.sleep(0)
        for _ in range(20):  # the other one is asked before these
            await client.get("/healthz")
        go_on.set()
        assert [(await search).status for search in searches] == [200, 200]
    assert found_most == [1, 1]


async def test_a_log_that_is_away_is_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    class Away(LocalSeedLog):
        progress = read = Mock(
            side_effect=LogUnavailable("Kafka at k:9092 (SITE_KAFKA_BROKERS) did not answer: refused.")
        )

    console = Console(tmp_path, time.time(), log=Away(tmp_path))
    console.hear(snapshot(at=time.time()))
    async with console.client() as client:
        await console.watch.look_once()
        for path in PAGES:
            query = {"url": "http://h.test/"} if path == "/url" else {}
            response = await client.get(path, params=query)
            assert response.status == 200
            assert "Kafka at k:9092 (SITE_KAFKA_BROKERS) did not answer" in await response.text()
    steps = console.watch.fleet.curves.between(console.now - 60, console.now + 600)
    assert [(each["waiting"], "lag" in each) for each in (step.gauges for step in steps) if each] == [(25, False)]


async def test_all_who_wait_for_dead_letters_are_told_at_once_that_the_log_is_away(tmp_path: Path) -> None:
    progress = Mock(side_effect=LogUnavailable("it did not answer"))
    console = Console(tmp_path, time.time(), log=Mock(LocalSeedLog, progress=progress, address="k:9092"))
    async with console.client() as client:
        found = await asyncio.gather(*(document(client, "/failures") for _ in range(5)))
    said = ["The dead letters shown may be old: it did not answer"]
    assert ([each["troubles"] for each in found], progress.call_count) == ([said] * 5, 1)


async def test_threads_that_wait_for_the_log_leave_some_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/healthz and /metrics must not wait for as long as Kafka is away."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    all_run = threading.Barrier(12)
    console = Console(tmp_path, time.time())

    async def run() -> None:
        await asyncio.gather(*(asyncio.to_thread(all_run.wait, 60) for _ in range(12)))

    monkeypatch.setattr(console.watch, "run", run)
    await console.handlers.serve(lambda _address: None)


def test_uplot_is_what_its_authors_released() -> None:
    """Version 1.6.32 of npm's package, with its licence."""
    folder = resource("console") / "static" / "uplot"
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    assert found == VENDORED
