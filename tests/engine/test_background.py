"""What runs beside the requests of a crawl is owned: its failure is seen, and ends the crawl with 70."""

from __future__ import annotations

import ast
import asyncio
import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import site_spider
from site_spider.adapters.local.log_file import LocalProducer
from site_spider.download.proxies import service as proxy_service
from site_spider.engine.background import THREAD_PREFIX, Background
from site_spider.errors import EXIT_SOFTWARE
from site_spider.frontier.scheduler import Queues
from site_spider.ledger.ledger import Ledger
from tests.in_process.engine import Crawled, crawl
from tests.intake.test_deaths import committed

PACKAGE = Path(site_spider.__file__).parent
STARTERS = {"create_task", "ensure_future", "Thread", "Timer", "start_new_thread", "callInThread"}

# Where something is started without Background, and who sees its failure.
OWNED = {
    ("engine/background.py", "create_task"): "this is Background",
    ("download/wire.py", "create_task"): "reads on; a failure ends the request that is answered",
    ("engine/bounded_client.py", "create_task"): "likewise",
    ("download/names.py", "create_task"): "a lookup; its failure is that of who connects",
    ("results/delivery.py", "create_task"): "a write, whose outcome the delivery looks at",
    ("intake/intake.py", "ensure_future"): "an answer, which is raised on the thread that asked",
    ("intake/intake.py", "Thread"): "the intake tells its owner",
    ("service/log_lines.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("service/stop.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("adapters/kafka/client.py", "Thread"): "closes a client, for which its consumer waits",
    ("adapters/kafka/producer.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("adapters/local/log_file.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("tasks/follower.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("observe/metrics/exporter.py", "Thread"): "a thread of ours, see THREAD_PREFIX",
    ("observe/metrics/exporter.py", "Timer"): "ends a connection that takes too long",
    ("commands/demo.py", "Thread"): "no part of a crawl",
    ("commands/top.py", "create_task"): "no part of a crawl",
    ("console/watch.py", "create_task"): "awaited by who asks, in no crawl",
    ("console/server.py", "create_task"): "an order, whose outcome is shown or logged, in no crawl",
}


@cache
def starts() -> list[tuple[str, ast.Call]]:
    return [
        (path.relative_to(PACKAGE).as_posix(), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and name_of(node) in STARTERS
    ]


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def test_nothing_is_started_that_nobody_owns() -> None:
    """Whoever starts something uses Background.start, or is in the list with a reason."""
    assert {(module, name_of(call)) for module, call in starts()} == OWNED.keys()


def test_threads_of_a_crawl_have_names_by_which_their_end_is_seen() -> None:
    named = {
        module: ast.literal_eval(next(each.value for each in call.keywords if each.arg == "name"))
        for module, call in starts()
        if name_of(call) == "Thread" and not module.startswith("commands/")
    }
    assert len(named) == 8
    assert [name for name in named.values() if not name.startswith(THREAD_PREFIX)] == []


class Bug(Exception):
    """Of our own."""


def fail(*_arguments: Any, **_keywords: Any) -> None:
    raise Bug("in the background")


def crawl_until_it_ends(folder: Path, **settings: Any) -> tuple[Crawled, int]:
    """A crawl that nobody stops, and its exit code."""
    seeds = [{"url": f"http://h.test/{n}", "meta": {"url_id": str(n)}} for n in range(3)]
    found = crawl(folder, [*seeds, b"no seed"], until=lambda _crawler: False, SITE_STOP_GRACE_SECONDS=2, **settings)
    return found, found.exit_code


def assert_failed(ended: tuple[Crawled, int], caplog: pytest.LogCaptureFixture) -> None:
    found, code = ended
    assert code == EXIT_SOFTWARE
    assert found.stats["finish_reason"] == "failed"
    told = [item for item in caplog.records if item.getMessage().startswith("The crawl cannot go on")]
    assert told[0].levelno == logging.ERROR
    assert told[0].getMessage() == "The crawl cannot go on: Bug('in the background')"
    assert told[0].exc_info is not None
    assert told[0].exc_info[0] is Bug


def test_the_ticker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without it nothing more would be committed. The next owner takes it for a death."""
    monkeypatch.setattr(Queues, "look", fail)
    assert_failed(crawl_until_it_ends(tmp_path), caplog)
    assert committed(tmp_path).owner


def test_the_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("site_spider.observe.statistics.snapshot", fail)
    assert_failed(crawl_until_it_ends(tmp_path), caplog)


def test_what_fails_while_the_crawl_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the start then does not find is no reason of its own."""

    def build(*arguments: Any) -> None:
        arguments[-1].fail(Bug("in the background"))
        raise AttributeError("the engine is gone")

    monkeypatch.setattr("site_spider.service.service.Parts", build)
    assert_failed(crawl_until_it_ends(tmp_path), caplog)


def test_what_follows_the_file_of_proxies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(proxy_service, "LOOK_SECONDS", 0.01)
    proxies = tmp_path / "proxies"
    proxies.write_text("http://127.0.0.1:1\n")
    looks = iter([1])
    monkeypatch.setattr(proxy_service, "_signature", lambda _path: next(looks, None) or fail())
    assert_failed(crawl_until_it_ends(tmp_path, SITE_PROXIES=str(proxies)), caplog)


def test_the_way_of_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else its seed would be held for ever."""
    monkeypatch.setattr(Ledger, "release", fail)
    assert_failed(crawl_until_it_ends(tmp_path), caplog)


def test_a_thread_of_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else no dead letter would ever be durable."""
    finish = LocalProducer._finish

    def fail_at_dead_letters(producer: LocalProducer, batch: Any, error: Any) -> None:
        if any("dead" in outgoing.topic for outgoing in batch):
            fail()
        finish(producer, batch, error)

    monkeypatch.setattr(LocalProducer, "_finish", fail_at_dead_letters)
    assert_failed(crawl_until_it_ends(tmp_path), caplog)


def test_a_task_that_is_cancelled_has_not_failed() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        failures: list[BaseException] = []
        task = Background(failures.append).start(wait(), "waiting")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert failures == []

    asyncio.run(scenario())
