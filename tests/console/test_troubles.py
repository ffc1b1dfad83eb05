"""A trouble in a real crawl is named by the overview; tests/console/test_causes.py has the others."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

from tools.console.scene import Scene, scene

SECONDS = 300.0


def read(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}?format=json", timeout=300) as answer:
        return dict(json.load(answer))


def named(address: str, *words: str) -> dict[str, Any]:
    """The cause with all these words, as soon as the overview says it."""
    deadline = time.monotonic() + SECONDS
    while True:
        overview = read(address)
        for cause in overview["causes"]:
            if all(word in cause["text"] for word in words):
                assert overview["conservation"]["conserved"]
                return dict(cause)
        assert time.monotonic() < deadline, overview["causes"]
        time.sleep(0.5)


def healthy(made: Scene, **variables: str) -> str:
    """A crawl that runs, with nothing wrong that the console would say; the console's address."""
    address = made.console()
    made.crawl(**variables)
    deadline = time.monotonic() + SECONDS
    while not read(address)["conservation"]["outcomes"]["result"]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return address


def test_a_callback_that_fails_for_one_task_is_named(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        made.produce(1000, "/good", "good")
        made.produce(40, "/spring", "spring")
        address = healthy(made, SPIDER_MODULES="tests.console.planted")
        cause = named(address, "Task spring", "the spider's callback fails")
        assert cause["page"] == "tasks"
        assert "Task good" not in json.dumps(read(address)["causes"])
