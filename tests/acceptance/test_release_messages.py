"""What a release writes into the seed topic is a seed for the release before, and the other way round.

Messages that have left wait in the topic while processes are replaced, and both releases take them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from site_spider.frontier.spill import TopicPartitions
from site_spider.seed.seed import parse_seed
from tests.acceptance.older_release import older_release, said_by
from tests.commands.project import SCRAPY, Project, environment
from tests.frontier.test_spill import messages
from tests.in_process import engine
from tests.in_process.engine import crawl, page
from tests.in_process.linked_site import Site, seed, site
from tests.tasks.test_end_in_crawl import events, told

__all__ = ["site"]

URLS = (
    "http://host.test/", "https://WWW.Host.test:8443/a?b=c&a=%20#x", "http://bücher.example/straße", "http://[::1]:80/x",
    "http://127.0.0.1/", "http://a_b.test/", "http://host.test./dot", "http://ἀπόλλων.gr/",
    "http://xn--bcher-kva.example/",
)  # fmt: skip
READ = """
import sys
from site_spider.core.seed import parse_seed
for line in sys.stdin:
    seed = parse_seed(line.encode())
    print(seed.url, seed.url_id, seed.depth, seed.moved and seed.moved.url, sep="\\t")
"""
WRITE = """
import json, sys
from site_spider.core.moved import KEY, Moved
from site_spider.core.url import check_url, host_of, url_id
for line in sys.stdin:
    url = check_url(line.rstrip("\\n"))
    began = {"url": url, "redirect_times": 2, "redirect_ttl": 18, "redirect_urls": (url, url),
             "redirect_reasons": (301, "meta refresh"), "retry_times": 1,
             "retry_reasons": ("503", "TimeoutError"), "unraised_priority": 0}
    for more in ({}, began):
        said = {"task_id": "t", "parent_url_id": url_id(url), "seed_url_id": "s", "url_id": url_id(url),
                "depth": 2, KEY: Moved(anchor_host=host_of(url), **more).fields()}
        print(json.dumps({"url": url, "method": "GET", "priority": 2, "cookies": {"a": "b"},
                          "dont_filter": True, "headers": {"Referer": [url]}, "meta": said}))
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return older_release(tmp_path_factory.mktemp("older"))


def test_the_release_before_takes_links_and_redirected_pages_of_this_one(
    older: Path, tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that it does not know inside of site_moved would make a dead letter of the page."""
    monkeypatch.setattr(TopicPartitions, "owns", lambda _self, host, _topic: not host.startswith("far"))
    site.has("root", "a", "b")
    for number in range(3):
        to = f"http://far{number}.test/hop{number + 1}"
        engine.ANSWERS["/a" if number == 0 else f"/hop{number}"] = lambda request, to=to: page(
            request, status=302, Location=to
        )
    settings = {"SITE_LINKS_TO": "kafka", "SITE_HOST_OWNERSHIP": True}
    found = crawl(tmp_path, [seed("root", meta={"task_id": "t", "own": [1]})], **settings)
    assert found.dead_letters == []
    left = [message for message in messages(tmp_path) if "site_moved" in message["meta"]]
    taken = said_by(older, READ, "".join(json.dumps(message) + "\n" for message in left))
    assert [line.split("\t") for line in taken] == [
        [
            message["url"],
            message["meta"]["url_id"],
            str(message["meta"]["depth"]),
            message["meta"]["site_moved"].get("url", ""),
        ]
        for message in left
    ]
    assert {message.get("site_hops") for message in left} == {None, 1, 2, 3}


def test_this_release_takes_links_and_redirected_pages_of_the_one_before(older: Path) -> None:
    """With the same id, for the same document."""
    written = [json.loads(line) for line in said_by(older, WRITE, "\n".join(URLS))]
    assert len(written) == 2 * len(URLS)
    for message in written:
        taken = parse_seed(json.dumps(message).encode())
        assert taken.url == message["url"]
        assert taken.url_id == message["meta"]["url_id"]
        assert taken.spilled is not None
        assert json.loads(json.dumps(taken.spilled.fields())) == message["meta"]["site_moved"]
        unnamed = {"url": message["url"], "meta": {}}  # as a producer writes it
        assert parse_seed(json.dumps(unnamed).encode()).url_id == message["meta"]["url_id"]


# The last commit whose processes told of traps and of what was put back as it stood before decision 0025.
TASKS = "bdecb8973aa1a88e6942c0b43eab0eed62e45a93"


@pytest.mark.nightly
def test_tasks_of_the_release_before_go_on(tmp_path: Path) -> None:
    """Ended, parked by a pause and by a budget, put back, under way without a close, closed and not begun."""
    older, data = older_release(tmp_path / "older", release=TASKS), tmp_path / "data"

    def before(*words: str, **given: str) -> None:
        """A command of the release before; pages do not answer."""
        settings = {"SITE_ALLOW_PRIVATE_HOSTS": "true", "RETRY_ENABLED": "false", "PYTHONPATH": str(older)}
        subprocess.run(
            words, cwd=older, env=environment(data, **settings), check=True, capture_output=True, text=True,
            timeout=120, **given,
        )  # fmt: skip

    def produce(task_id: str, count: int, *options: str) -> None:
        urls = "".join(f"http://127.0.0.1:1/{task_id}{number}\n" for number in range(count))
        before(*SCRAPY, "seed", "-", "--task-id", task_id, *options, input=urls)

    declared = {"paused": (), "back": (), "budget": ("--max-pages", "2"), "fresh": ("--rate", "50/s")}
    for task_id, options in declared.items():
        before(*SCRAPY, "task", "start", task_id, *options)
    for task_id in ("paused", "back"):
        before(*SCRAPY, "task", "pause", task_id)
    for task_id in ("ended", "paused", "back", "budget"):
        produce(task_id, 6, "--close")
    produce("open", 2)
    before("task_shell/crawl_spider.sh", "-v", sys.prefix, "--until-done")
    before(*SCRAPY, "task", "resume", "back")
    produce("later", 3, "--close")
    assert [event["task_id"] for event in events(data)] == ["ended"]

    project = Project(data)
    listed = map(json.loads, project.within("task", "list", "--json").stdout.splitlines())
    assert {task["task_id"]: (task["state"], task["pages_begun"], task["parked"]) for task in listed} == {
        **dict.fromkeys(("back", "fresh", "later", "open"), ("running", 0, 0)),
        "ended": ("done", 0, 0), "budget": ("paused", 2, 4), "paused": ("paused", 0, 6),
    }  # fmt: skip
    assert "6 parked" in project.within("task", "resume", "paused").stdout
    project.within("task", "set", "budget", "max_pages=9")
    project.within("task", "close", "open")
    project.within("seed", "-", "--task-id", "ended", "--close", stdin="http://127.0.0.1:1/more\n")
    assert crawl(data, [], until=told(data, 7), SITE_ALLOW_PRIVATE_HOSTS=True).dead_letters == []
    found = {(event["task_id"], event["generation"]): event["seeds"] for event in events(data)}
    assert found == {
        ("ended", 1): {"failure": 6, "total": 6},
        ("ended", 2): {"result": 1, "failure": 6, "total": 7},
        ("paused", 1): {"result": 6, "total": 6},
        ("back", 1): {"result": 6, "total": 6},
        ("budget", 1): {"result": 4, "failure": 2, "total": 6},
        ("open", 1): {"failure": 2, "total": 2},
        ("later", 1): {"result": 3, "total": 3},
    }
