"""The fleet is known in the same way on Kafka and on the embedded seed log."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import MagicMock

from site_spider.console.watch import FleetWatch, TaskWatch
from site_spider.contracts.seed_log import name_of
from site_spider.seed.tiers import CrawlTopics
from site_spider.tasks.declaration import usual_task
from site_spider.tasks.orders import TaskDesk
from tests.console.snapshots import snapshot
from tests.contracts.seed_logs import PATIENCE_SECONDS, Case, case, kafka_producer

__all__ = ["case", "kafka_producer"]


def test_processes_and_lag_are_known(case: Case) -> None:
    case.produce(20)
    statistics = f"{case.topic}.stats"
    case.make_topic(statistics, 1)
    watch = FleetWatch(case.log, case.group, case.topic, statistics, 10.0)

    def tell(number: int) -> None:
        told = snapshot(number, at=time.time(), group=case.group)
        case.producer.send(statistics, told["process"].encode(), json.dumps(told).encode()).result(PATIENCE_SECONDS)

    async def scenario() -> None:
        await asyncio.to_thread(tell, 1)
        await watch.look_once()
        await asyncio.to_thread(tell, 2)
        await watch.look_once()

    asyncio.run(scenario())
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
    watch = TaskWatch(log, CrawlTopics.beside({"SITE_SEED_TOPIC": "seeds"}))
    with ThreadPoolExecutor(2) as threads:
        look = threads.submit(watch.look)
        assert asked.wait(PATIENCE_SECONDS)
        closing = threads.submit(watch.close)
        may_answer.set()
        reader.is_at_end = True
        look.result(PATIENCE_SECONDS)
        closing.result(PATIENCE_SECONDS)
    assert happened[:2] == ["looked", "closed"]
