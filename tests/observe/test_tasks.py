"""Counts by task: exact for many, bounded for all."""

from __future__ import annotations

from site_spider.observe.counters import MOST_SHOWN, MOST_TASKS, TaskSums


def test_the_largest_are_shown_by_name_and_the_others_in_sum() -> None:
    tasks = TaskSums()
    for number in range(500):
        for _ in range(number):
            tasks.of(f"t{number}").page(10)
        tasks.of(f"t{number}").ended("result")
    found = tasks.document()
    assert [task["task_id"] for task in found["largest"]] == [f"t{n}" for n in range(499, 299, -1)]
    assert found["largest"][0]["pages"] == 499
    assert found["others"]["tasks"] == 500 - MOST_SHOWN
    assert found["others"]["pages"] == sum(range(300))
    assert found["others"]["outcomes"] == {"result": 300}


def test_a_task_a_seed_takes_bounded_memory_and_loses_no_count() -> None:
    """The large ones keep their names."""
    tasks = TaskSums()
    for number in range(100_000):
        tasks.of(f"one{number}").page(1)
        if number % 100 == 0:
            tasks.of("large").page(5)
    found = tasks.document()
    assert found["largest"][0]["task_id"] == "large"
    assert found["largest"][0]["pages"] == 1000
    assert len(tasks._counts) <= MOST_TASKS
    assert found["others"]["pages"] + sum(task["pages"] for task in found["largest"]) == 101_000
    assert found["others"]["tasks"] + len(found["largest"]) == 100_001
