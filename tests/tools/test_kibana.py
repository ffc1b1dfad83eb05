"""The objects for Kibana: generated, strict, and each panel has a figure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.tools.kibana_structure import layer_of, mistakes, panels
from tools.kibana import FILE, exported, value

EXPORT = FILE.read_text(encoding="utf-8")


def test_the_file_is_what_its_description_says() -> None:
    """Run `python -m tools.kibana` after a change."""
    assert exported() == EXPORT


def test_a_kibana_takes_the_objects() -> None:
    assert mistakes(EXPORT) == []


def test_there_are_three_dashboards_and_four_data_views() -> None:
    objects = [json.loads(line) for line in EXPORT.splitlines()[:-1]]
    of = lambda kind: [one["attributes"]["title"] for one in objects if one["type"] == kind]  # noqa: E731
    assert of("dashboard") == [f"site_spider: {name}" for name in ("Crawl", "Results", "Operations")]
    assert of("index-pattern") == ["site_results*", "site_items*", "site_stats*", "site_dead_letters*"]
    assert len([*panels(EXPORT)]) > 30


def first_lens(change: Callable[[dict[str, Any]], object]) -> str:
    """The file with one panel changed."""
    lines = EXPORT.splitlines()
    for number, line in enumerate(lines[:-1]):
        one = json.loads(line)
        if one["type"] == "dashboard":
            shown = json.loads(one["attributes"]["panelsJSON"])
            change(shown[6])
            one["attributes"]["panelsJSON"] = json.dumps(shown)
            lines[number] = json.dumps(one)
            break
    return "\n".join(lines)


def column(panel: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = layer_of(panel["embeddableConfig"]["attributes"])["columns"][name]
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda panel: panel["gridData"].update(x=40),
        lambda panel: panel["gridData"].update(x=0, y=0),
        lambda panel: panel.update(version="8.9.0"),
        lambda panel: panel["embeddableConfig"]["attributes"].update(description=""),
        lambda panel: panel["embeddableConfig"]["attributes"]["references"].clear(),
        lambda panel: layer_of(panel["embeddableConfig"]["attributes"])["columnOrder"].reverse(),
        lambda panel: layer_of(panel["embeddableConfig"]["attributes"])["columnOrder"].pop(),
        lambda panel: column(panel, "y0").pop("sourceField"),
        lambda panel: column(panel, "y0")["params"].update(percentile=1),
        lambda panel: column(panel, "y0").update(operationType="average"),
        lambda panel: column(panel, "x0")["params"].pop("interval"),
        lambda panel: panel["embeddableConfig"]["attributes"]["state"]["visualization"].pop("legend"),
        lambda panel: panel["embeddableConfig"]["attributes"]["state"]["visualization"]["layers"][0].update(
            accessors=[]
        ),
    ],
)
def test_the_check_sees_what_is_wrong(change: Callable[[dict[str, Any]], object]) -> None:
    assert mistakes(first_lens(change))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"typeMigrationVersion":"8.9.0"', '"typeMigrationVersion":"8.10.0"'),
        ('"id":"site-spider-items","managed"', '"id":"other","managed"'),
        ('"timeRestore":true', '"timeRestored":true'),
        ('"exportedCount":', '"exportedCount":1'),
        ('"title":"site_items*"', '"title":7'),
    ],
)
def test_the_check_sees_wrong_objects(old: str, new: str) -> None:
    assert old in EXPORT
    assert mistakes(EXPORT.replace(old, new, 1))


@pytest.mark.parametrize("text", ["sums(x)", "p5(x)", "sum(x", "", "sum(x) is y"])
def test_a_value_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="x"):
        value(text, "x")
