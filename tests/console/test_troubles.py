"""An operator who has never seen the project: three troubles in real crawls, each named by the overview."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.console.planted import GONE
from tools.console.scene import SLOW_HOST, Scene, scene

SECONDS = 120.0  # within two minutes


def read(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}?format=json", timeout=30) as answer:
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


@pytest.mark.nightly
def test_a_sink_that_is_away_is_named(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        made.produce(5000)
        address = healthy(made, SITE_SINKS="tests.console.planted.LeavingSink")
        (made.folder / "data" / GONE).touch()
        cause = named(address, "sink archive away", "Paused", "results wait for it")
        assert (cause["weight"], cause["page"]) == ("stop", "sinks")
        assert read(address)["verdict"] == "The crawl is held up."
        (made.folder / "data" / GONE).unlink()
        deadline = time.monotonic() + SECONDS
        while "sink archive away" in json.dumps(read(address)["causes"]):
            assert time.monotonic() < deadline
            time.sleep(0.5)


@pytest.mark.nightly
def test_one_slow_host_with_most_of_the_seeds_is_named(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        made.produce(100)
        made.produce(900, hosts=(SLOW_HOST,))
        address = healthy(made)
        cause = named(address, f"Host {SLOW_HOST} holds", "of the waiting requests")
        assert (cause["weight"], cause["page"]) == ("slow", "hosts")


def test_a_callback_that_fails_for_one_task_is_named(tmp_path: Path) -> None:
    with scene(tmp_path) as made:
        made.produce(1000, "/good", "good")
        made.produce(40, "/spring", "spring")
        address = healthy(made, SPIDER_MODULES="tests.console.planted")
        cause = named(address, "Task spring", "the spider's callback fails")
        assert cause["page"] == "tasks"
        assert "Task good" not in json.dumps(read(address)["causes"])
