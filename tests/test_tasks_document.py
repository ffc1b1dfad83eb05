"""docs/tasks.md: the demonstration runs as it is printed there, and shows what the text says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.reader import ROOT, blocks, shape, terminal_of_a_copy

BLOCKS = [*blocks(ROOT / "docs" / "tasks.md", "Try it: two teams, one topic")]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = tmp_path_factory.mktemp("tasks")
    with terminal_of_a_copy(folder) as terminal:
        yield [terminal.paste(block.command) for block in BLOCKS]
    assert not (folder / "project" / "data").exists(), "a reader who pastes the blocks loses nothing, and adds nothing"


def test_each_block_prints_what_the_text_says(printed: list[str]) -> None:
    expected = [block.output for block in BLOCKS]
    assert sum(output is not None for output in expected) >= 3
    for output, found in zip(expected, printed, strict=True):
        if output is not None:
            assert shape(found) == shape(output)


def test_the_urgent_job_overtakes_the_bulk_job(printed: list[str]) -> None:
    """It came last and is done; the other has done a part."""
    rows = dict(re.findall(r"(?m)^(catalogue|news) +\w+ +\S+ +\S+ +(\d+)", "".join(printed)))
    assert int(rows["news"]) == 20
    assert 0 < int(rows["catalogue"]) < 1500


def test_the_webhook_has_the_end_of_both_teams(printed: list[str]) -> None:
    lines = [line for line in "".join(printed).splitlines() if line.startswith("{")]
    events = {event["task_id"]: event for event in map(json.loads, lines)}
    assert {name: (event["event"], event["seeds"]) for name, event in events.items()} == {
        "news": ("done", {"result": 20, "total": 20}),
        "catalogue": ("done", {"result": 1500, "total": 1500}),
    }
    assert events["news"]["last_at"] < events["catalogue"]["last_at"]
