"""What is known of the whole group, and that nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.contracts.seed_log import LogFacts, Partition
from site_spider.errors import LogUnavailable
from site_spider.observe.metrics.exporter import GroupWatch
from tests.in_process.engine import produce


def looked(watch: GroupWatch) -> dict[str, Any]:
    deadline = time.monotonic() + 300
    while not (found := watch.look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_lag_age_and_dead_letters_of_a_group(tmp_path: Path) -> None:
    log = LocalSeedLog(tmp_path)
    produce(log, "seeds", [{"url": "http://h.test/1"}] * 3)
    produce(log, "dead", [b"x"] * 2)
    found = looked(GroupWatch(log, "seeds", "g", "dead"))
    assert found["lag_seeds"] == {"seeds": 3}
    assert 0 <= found["lag_age_seconds"]["seeds"] < 60
    assert found["dead_letters"] == {"dead": 2}
    assert found["members"] == 0
    assert "retention_seconds" not in found


def test_each_tier_has_lag_and_age_of_its_own(tmp_path: Path) -> None:
    """Also one that nobody has produced to yet beside others."""
    log = LocalSeedLog(tmp_path)
    produce(log, "urgent", [{"url": "http://h.test/1"}])
    produce(log, "bulk", [{"url": "http://h.test/1"}] * 3)
    found = looked(GroupWatch(log, ("urgent", "seeds", "bulk"), "g", "dead"))
    assert found["lag_seeds"] == {"urgent": 1, "bulk": 3}
    assert set(found["lag_age_seconds"]) == {"urgent", "bulk"}
    assert found["partitions_unowned"] == {"urgent": 4, "bulk": 4}


def test_a_log_that_does_not_answer_is_not_waited_for_and_nothing_old_is_shown(tmp_path: Path) -> None:
    answers = threading.Event()

    class Slow(LocalSeedLog):
        def facts(self, topic: str, group: str, offsets: Mapping[Partition, int]) -> LogFacts:
            if answers.is_set():
                raise LogUnavailable("away")
            return super().facts(topic, group, offsets)

    now = [0.0]
    log = Slow(tmp_path)
    produce(log, "seeds", [b"x"])
    watch = GroupWatch(log, "seeds", "g", "dead", clock=lambda: now[0])
    assert looked(watch)["lag_seeds"] == {"seeds": 1}
    answers.set()
    now[0] += 60
    deadline = time.monotonic() + 300
    while watch.look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_log_is_asked_some_times_a_minute_only(tmp_path: Path) -> None:
    asked = []

    class Counted(LocalSeedLog):
        def progress(self, topic: str, group: str) -> Any:
            asked.append(topic)
            return super().progress(topic, group)

    now = [0.0]
    log = Counted(tmp_path)
    produce(log, "seeds", [b"x"])
    watch = GroupWatch(log, "seeds", "g", "dead", clock=lambda: now[0])
    looked(watch)
    for _ in range(100):
        watch.look()
    assert asked == ["seeds", "dead"]
