"""The fleet is known by the topic of snapshots and the sockets of this host, on Kafka and on the embedded log alike."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock, create_autospec

import pytest

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.commands.top import lines
from site_spider.console.fleet import Life
from site_spider.console.pages import overview
from site_spider.console.watch import FleetWatch, History, TaskWatch
from site_spider.contracts.seed_log import Message, Partition, name_of
from site_spider.errors import LogUnavailable
from site_spider.observe import frontier_socket
from site_spider.observe.frontier_socket import METRICS_QUESTION
from site_spider.seed.topics import CrawlTopics
from site_spider.tasks.declaration import usual_task
from site_spider.tasks.orders import TaskDesk, TaskOverview
from tests.console.consoles import TOPICS, watch_of
from tests.console.snapshots import seeds, snapshot
from tests.contracts.seed_logs import PATIENCE_SECONDS, Case, case, kafka_producer
from tests.in_process.engine import produce


def tell(log: LocalSeedLog, *snapshots: dict[str, Any] | bytes) -> None:
    producer = log.producer()
    for each in snapshots:
        value = each if isinstance(each, bytes) else json.dumps(each).encode()
        key = b"odd" if isinstance(each, bytes) else each["process"].encode()
        producer.send(TOPICS.statistics, key, value).result(300)
    producer.close()


async def test_processes_of_other_machines_are_known_by_the_topic(tmp_path: Path) -> None:
    """What is no snapshot, and what other groups say, is passed over."""
    log, now = LocalSeedLog(tmp_path), time.time()
    tell(log, b"", b"nonsense", b"[1]", snapshot(9, at=now, group="another"))
    tell(log, snapshot(1, at=now), snapshot(2, at=now, moment="close"))
    watch = watch_of(log)
    await watch.look_once()
    view = watch.view()
    lives = {seen.state.pid: seen.life(view.now) for seen in view.fleet.seen.values()}
    assert lives == {1: Life.RUNNING, 2: Life.ENDED}


def test_only_what_is_new_is_read_again(tmp_path: Path) -> None:
    log, now = LocalSeedLog(tmp_path), time.time()
    tell(log, snapshot(1, at=now))
    history = History(log, TOPICS.statistics, 10.0)
    assert len(history.look(time.time())) == 1
    assert history.look(time.time()) == []
    tell(log, snapshot(1, at=now + 1, waiting=77))
    assert [state.waiting for _, state in history.look(time.time())] == [77]


def test_what_is_read_before_the_log_goes_away_is_read_again(tmp_path: Path) -> None:
    """The last word of a process that has ended, say: it comes once."""

    class Broken(LocalSeedLog):
        def read(
            self, topic: str, start: Mapping[Partition, int] | None = None, since_ms: int = 0
        ) -> Iterator[Message]:
            yield from super().read(topic, start, since_ms)
            if next(is_away):
                raise LogUnavailable("it went away")

    is_away = iter([True, False, False])
    log, now = Broken(tmp_path), time.time()
    tell(log, snapshot(1, at=now, moment="close"))
    history = History(log, TOPICS.statistics, 10.0)
    with pytest.raises(LogUnavailable):
        history.look(now)
    assert [state.is_ended for _, state in history.look(now)] == [True]
    assert history.look(now) == []


def test_an_hour_of_many_processes_is_thinned_and_ends_with_the_newest(tmp_path: Path) -> None:
    """Of one process one snapshot in thirty seconds, and the last."""
    log, now = LocalSeedLog(tmp_path), time.time()
    tell(log, *(snapshot(1, at=now + number, seeds=seeds(number, number, 0)) for number in range(50)))
    heard = History(log, TOPICS.statistics, 10.0).look(time.time())
    assert [state.consumed for _, state in heard] == [0, 49]


async def test_sources_that_are_missing_are_said_and_may_come_later(tmp_path: Path) -> None:
    log = LocalSeedLog(tmp_path)
    watch = watch_of(log)
    await watch.look_once()
    assert ["history" in trouble or "progress" in trouble for trouble in watch.view().troubles] == [True, True]
    assert {"No process was heard of", "Nothing is known of the crawl."} <= {*lines(overview(watch.view()))}
    tell(log, snapshot(1, at=time.time()))
    produce(log, "seeds", [{}])
    await watch.look_once()
    assert watch.view().troubles == ()
    assert watch.view().lag == 1


async def test_something_is_left_to_do_while_any_tier_has_it(tmp_path: Path) -> None:
    log = LocalSeedLog(tmp_path)
    produce(log, "seeds", [])
    produce(log, "bulk", [{"url": "http://h.test/"}] * 3)
    tell(log, snapshot(1, at=time.time(), seeds_in_flight={"seeds/0": 0}))
    watch = watch_of(log, "urgent", "seeds", "bulk")
    await watch.look_once()
    found = overview(watch.view())
    assert found["verdict"] != "Nothing is left to do."
    assert (found["topic"], found["progress"]["lag"]) == ("urgent,seeds,bulk", 3)
    assert {topic: tier["lag"] for topic, tier in found["progress"]["tiers"].items()} == {
        "urgent": 0, "seeds": 0, "bulk": 3
    }  # fmt: skip
    produce(log, "seeds", [{"url": "http://h.test/"}])
    await watch.look_once()
    assert "lag by tier    urgent 0, seeds 1, bulk 3" in "\n".join(lines(overview(watch.view())))


async def process_of(log: LocalSeedLog, number: int, asked: list[bytes]) -> asyncio.Server:
    """A process of this host that uses this log, and notes what it is asked."""
    name = name_of(log)

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = (await reader.readline()).strip()
        asked.append(question)
        said = snapshot(number, at=time.time())
        writer.write(json.dumps(said | {"log": name._asdict()}).encode())
        writer.close()

    folder = next(iter(frontier_socket.folders()))
    folder.mkdir(mode=0o700, exist_ok=True)
    return await asyncio.start_unix_server(answered, frontier_socket.new_path())


async def test_processes_of_another_seed_log_are_asked_once_and_not_shown(tmp_path: Path) -> None:
    """Of the same group and topic by name; nor do they count in metrics and health."""
    mine, others = LocalSeedLog(tmp_path / "mine"), LocalSeedLog(tmp_path / "others")
    watch, asked = watch_of(mine), list[bytes]()
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")

    logs = ((mine, []), (LocalSeedLog(tmp_path / "link"), []), (others, asked))
    servers = [await process_of(log, number, heard) for number, (log, heard) in enumerate(logs, 1)]
    await watch.look_at_this_host()
    await watch.look_at_this_host()
    found = await watch.local_processes.ask_all(METRICS_QUESTION)
    for server in servers:
        server.close()
    assert (len(found.snapshots), found.silent) == (2, [])
    assert sorted(seen.state.pid for seen in watch.fleet.seen.values()) == [1, 2]
    assert len(asked) == 1
    [named] = watch.view().others
    assert named == "machine-3-1799999000 (site_spider), of another seed log"


async def test_a_process_that_was_killed_has_not_ended_when_another_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which removes the socket that is left behind. Whoever ends in order removes it by itself."""
    monkeypatch.setattr(frontier_socket, "folders", lambda: iter([tmp_path / "s"]))
    watch, log, lives = watch_of(LocalSeedLog(tmp_path)), LocalSeedLog(tmp_path), []
    for number, ends in enumerate((False, True), 1):
        server = await process_of(log, number, [])
        path = Path(server.sockets[0].getsockname())
        await watch.look_at_this_host()
        left = path.rename(path.with_suffix(".left"))
        server.close()  # which removes its socket, from Python 3.13 on
        if ends:
            left.unlink()
        else:
            left.rename(path)
        monkeypatch.setattr(frontier_socket, "_own", set[Path]())  # as of another process with this number
        frontier_socket.remove_stale()
        assert not path.exists()
        await watch.look_at_this_host()
        lives.append(watch.fleet.seen[f"machine-{number}-1799999000"].life(time.time() + 60))
    assert lives == [Life.SILENT, Life.ENDED]
    monkeypatch.setattr(frontier_socket, "_KILLED_SECONDS", -1.0)
    frontier_socket.remove_stale()
    assert not list(path.parent.glob("*.killed"))


async def test_the_name_of_the_log_is_learnt_by_all_who_wait_for_it(tmp_path: Path) -> None:
    """A scrape of the metrics comes while the console looks for the first time."""
    found = watch_of(LocalSeedLog(tmp_path)).local_processes
    await asyncio.gather(found.ask_all(METRICS_QUESTION), found.ask_all(b"0"), found.ask_all(b"0"))


__all__ = ["case", "kafka_producer"]


async def test_processes_and_lag_are_known(case: Case) -> None:
    case.produce(20)
    topics = CrawlTopics.beside({"SITE_SEED_TOPIC": case.topic})
    case.make_topic(topics.statistics, 1)
    watch = FleetWatch(case.log, case.group, topics, topics.tiers, 10.0)

    for number in (1, 2):
        told = snapshot(number, at=time.time(), group=case.group)
        sent = case.producer.send(topics.statistics, told["process"].encode(), json.dumps(told).encode())
        sent.result(PATIENCE_SECONDS)
        await watch.look_once()
    view = watch.view()
    assert view.troubles == ()
    assert view.log is not None
    assert sorted(seen.state.pid for seen in view.fleet.seen.values()) == [1, 2]
    assert (view.lag, len(view.log.partitions)) == (20, len(case.log.progress(case.topic, case.group)))


def test_a_log_has_one_name_for_all_who_use_it(case: Case) -> None:
    """Not its address: brokers have several, and a folder may be reached by several paths."""
    name = name_of(case.log)
    assert name.identity not in ("", name.address)
    assert name == name_of(case.log)


def test_tasks_are_followed_and_ordered(case: Case) -> None:
    case.make_topic(case.topic, 1)
    topics = CrawlTopics.beside({"SITE_SEED_TOPIC": case.topic})
    TaskDesk(case.log, topics).write(usual_task("spring"))
    watch = TaskWatch(case.log, topics)
    try:
        watch.look()
        assert [task.state for task in watch.facts] == ["running"]
        watch.order("pause", "spring", (), is_told_of=False)
        watch.look()
        assert [task.state for task in watch.facts] == ["paused"]
    finally:
        watch.close()


def test_only_tasks_of_which_something_was_read_are_looked_at_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be 100,000, and each takes 0.1 ms; what was read before the log went away is among them."""
    log, looked_at = LocalSeedLog(tmp_path), create_autospec(TaskOverview.of, side_effect=TaskOverview.of)
    desk, watch = TaskDesk(log, TOPICS), TaskWatch(log, TOPICS)
    for task_id in "bca":
        desk.write(usual_task(task_id))
    desk.make_known("c")
    watch.look()
    assert [task.task_id for task in watch.facts] == ["a", "b", "c"]
    monkeypatch.setattr(TaskOverview, "of", looked_at)
    desk.write(usual_task("b").model_copy(update={"state": "paused"}))
    desk.forget("c")
    with monkeypatch.context() as away:
        away.setattr(watch._ends, "read_on", Mock(side_effect=LogUnavailable("away")))
        with pytest.raises(LogUnavailable):
            watch.look()
    watch.look()
    assert [(task.task_id, task.state) for task in watch.facts] == [("a", "running"), ("b", "paused")]
    assert [call.args[1] for call in looked_at.call_args_list] == ["b"]
    assert not watch._endings.deleted  # which are for who counts
    watch.close()


def test_a_watch_is_closed_when_the_look_at_tasks_is_over() -> None:
    """A look goes on in its thread when the console ends; a database that is closed under it is a crash."""
    asked, may_answer, log = threading.Event(), threading.Event(), MagicMock()
    happened: list[str] = []

    def poll(_seconds: float) -> list[object]:
        asked.set()
        may_answer.wait(PATIENCE_SECONDS)
        happened.append("looked")
        return []

    reader = log.reader.return_value
    reader.is_at_end, reader.poll, reader.close = False, poll, lambda: happened.append("closed")
    watch = TaskWatch(log, TOPICS)
    with ThreadPoolExecutor(2) as threads:
        look = threads.submit(watch.look)
        assert asked.wait(PATIENCE_SECONDS)
        closing = threads.submit(watch.close)
        may_answer.set()
        reader.is_at_end = True
        look.result(PATIENCE_SECONDS)
        closing.result(PATIENCE_SECONDS)
    assert happened[:2] == ["looked", "closed"]
