"""The options of chaos.sh: which go together, and the plan that follows from them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tools.chaos.options import Options, read_options
from tools.chaos.plan import FIRST_SHARE, LAST_SHARE, Kind, plan


def options(folder: Path, line: str) -> Options:
    return read_options(["--folder", str(folder), *line.split()])


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("--exactly-once", "--sink kafka"),
        ("--exactly-once --sink hbase", "--sink kafka"),
        ("--elasticsearch-blocks 1 --sink kafka", "--sink elasticsearch"),
        ("--elasticsearch-restarts 1 --sink hbase", "--sink elasticsearch"),
        ("--hbase-restarts 1", "--sink hbase"),
        ("--tasks 3 --topics", "leave --tasks or it out"),
        ("--tasks 3 --sink kafka --exactly-once", "leave --tasks or it out"),
        ("--pauses 1", "--tasks N"),
        ("--cancels 2 --tasks 2", "a larger --tasks"),
        ("--tasks 3 --seeds 2", "each task needs a seed"),
        ("--embedded --sink kafka", "leave one out"),
        ("--embedded --proxies 1", "leave one out"),
        ("--embedded --brokers 3", "leave one out"),
        ("--embedded --recreated-topics 1", "leave one out"),
        ("--recreated-topics 1 --tree 2", "leave --tree or it out"),
        ("--recreated-topics 1 --tasks 2", "--tasks 0"),
        ("--recreated-topics 1 --soak 5", "--tasks 0"),
        ("--soak 1 --topics --pauses 1", "--tasks N"),
        ("--brokers 2", "--brokers"),
        ("--soak 0", "--soak"),
    ],
)
def test_what_does_not_go_together_ends_with_two_and_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, remedy: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        options(tmp_path, line)
    assert ended.value.code == 2
    assert remedy in capsys.readouterr().err


def test_what_nobody_said_follows_from_the_sink(tmp_path: Path) -> None:
    assert options(tmp_path, "").elasticsearch_restarts == 1
    kafka = options(tmp_path, "--sink kafka --exactly-once")
    assert (kafka.broker_restarts, kafka.elasticsearch_restarts, kafka.hbase_restarts) == (1, 0, 0)
    assert options(tmp_path, "--sink hbase").hbase_restarts == 1
    assert options(tmp_path, "--embedded --broker-restarts 2").broker_restarts == 0


def test_the_plan_has_what_was_asked_for_within_the_crawl(tmp_path: Path) -> None:
    wanted = options(
        tmp_path,
        "--tasks 7 --pauses 3 --cancels 2 --proxies 4 --added-partitions 2 --elasticsearch-blocks 1",
    )
    events = plan(wanted)
    counts = Counter(event.kind for event in events)
    assert counts == {
        Kind.KILL: 5, Kind.TERM: 1, Kind.BROKER: 1, Kind.ELASTICSEARCH: 1, Kind.BLOCK: 1,
        Kind.PROXY: 4, Kind.PARTITIONS: 2, Kind.PAUSE: 3, Kind.CANCEL: 2, Kind.CLOSE: 3,
    }  # fmt: skip
    assert all(FIRST_SHARE <= event.share <= LAST_SHARE for event in events)


def test_topics_are_created_again_as_often_as_asked_for(tmp_path: Path) -> None:
    events = plan(options(tmp_path, "--recreated-topics 3 --topics"))
    assert Counter(event.kind for event in events)[Kind.TOPIC] == 3


def test_a_random_seed_repeats_the_plan(tmp_path: Path) -> None:
    line = "--soak 60 --random-seed 7"
    assert plan(options(tmp_path, line)) == plan(options(tmp_path, line))
    assert plan(options(tmp_path, line)) != plan(options(tmp_path, "--soak 60 --random-seed 8"))


def test_a_soak_has_all_that_fits_its_sink(tmp_path: Path) -> None:
    counts = Counter(event.kind for event in plan(options(tmp_path, "--soak 120 --random-seed 1")))
    assert set(counts) == set(Kind) - {Kind.HBASE, Kind.CLOSE, Kind.TOPIC}
    counts = Counter(event.kind for event in plan(options(tmp_path, "--soak 120 --tasks 0 --random-seed 1")))
    assert set(counts) == set(Kind) - {Kind.HBASE, Kind.CLOSE, Kind.PAUSE, Kind.CANCEL}
    kafka = options(tmp_path, "--soak 120 --sink kafka --exactly-once --kills 3")
    counts = Counter(event.kind for event in plan(kafka))
    assert counts[Kind.KILL] == 3
    assert not {Kind.PAUSE, Kind.CANCEL, Kind.BLOCK, Kind.ELASTICSEARCH} & set(counts)
    assert kafka.items
    counts = Counter(event.kind for event in plan(options(tmp_path, "--soak 120 --embedded --random-seed 1")))
    assert set(counts) == {Kind.KILL, Kind.TERM, Kind.STOP, Kind.JOIN, Kind.PAUSE, Kind.CANCEL}
