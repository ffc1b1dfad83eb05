"""The options of chaos.sh: which go together, and the plan that follows from them."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from pathlib import Path

import pytest

from tools.chaos.acts import ACTS
from tools.chaos.plan import FIRST_SHARE, LAST_SHARE, plan, read_options


def options(folder: Path, line: str) -> Namespace:
    return read_options(["--folder", str(folder), *line.split()])


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("--exactly-once", "--sink kafka"),
        ("--elasticsearch-restarts 1 --sink kafka", "--sink elasticsearch"),
        ("--tasks 3 --topics", "leave --tasks or it out"),
        ("--tasks 3 --sink kafka --exactly-once", "leave --tasks or it out"),
        ("--pauses 1", "--tasks N"),
        ("--cancels 2 --tasks 2", "a larger --tasks"),
        ("--tasks 3 --seeds 2", "each task needs a seed"),
        ("--embedded --sink kafka", "leave one out"),
        ("--embedded --proxies 1", "leave one out"),
        ("--embedded --broker-restarts 2", "leave one out"),
        ("--embedded --brokers 3", "leave one out"),
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


def counts(folder: Path, line: str) -> Counter[str]:
    return Counter(event.name for event in plan(options(folder, line)))


def test_what_nobody_said_follows_from_the_sink(tmp_path: Path) -> None:
    found = counts(tmp_path, "")
    assert found == {"kills": 5, "terms": 1, "broker_restarts": 1, "elasticsearch_restarts": 1}
    assert counts(tmp_path, "--sink kafka --exactly-once") == {"kills": 5, "terms": 1, "broker_restarts": 1}
    assert counts(tmp_path, "--embedded") == {"kills": 5, "terms": 1}


def test_the_plan_has_what_was_asked_for_within_the_crawl(tmp_path: Path) -> None:
    line = "--tasks 7 --pauses 3 --cancels 2 --proxies 4"
    assert counts(tmp_path, line) == {
        "kills": 5, "terms": 1, "broker_restarts": 1, "elasticsearch_restarts": 1,
        "proxies": 4, "pauses": 3, "cancels": 2, "closes": 3,
    }  # fmt: skip
    events = plan(options(tmp_path, f"{line} --kills 50"))
    assert all(FIRST_SHARE <= event.share <= LAST_SHARE for event in events)


def test_a_soak_has_all_that_fits_its_sink(tmp_path: Path) -> None:
    every, line = set(ACTS) - {"closes"}, "--soak 120 --random-seed 1"
    assert set(counts(tmp_path, line)) == every
    assert set(counts(tmp_path, f"{line} --tasks 0")) == every - {"pauses", "cancels"}
    kafka = "--soak 120 --sink kafka --exactly-once --kills 3"
    assert counts(tmp_path, kafka)["kills"] == 3
    assert not {"pauses", "cancels", "elasticsearch_restarts"} & set(counts(tmp_path, kafka))
    assert options(tmp_path, kafka).items
    embedded = {"kills", "terms", "stops", "joins", "pauses", "cancels"}
    assert set(counts(tmp_path, f"{line} --embedded")) == embedded
