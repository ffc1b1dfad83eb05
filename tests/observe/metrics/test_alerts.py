"""resources/prometheus: rules that promtool takes, and each alert seen firing and silent."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.debian import amtool, promtool
from tests.test_docs import anchors

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "resources" / "prometheus"
TESTS = FOLDER / "alerts_test.yml"


def rules(name: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for rule in rules("alerts.yml")}


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", FOLDER / "rules.yml", FOLDER / "alerts.yml")


def test_each_alert_fires_and_is_silent_as_the_cases_say() -> None:
    promtool("test", "rules", TESTS)


def test_each_alert_has_a_case_that_fires_and_one_that_is_silent() -> None:
    found: dict[str, set[bool]] = defaultdict(set)
    for case in yaml.safe_load(TESTS.read_text(encoding="utf-8"))["tests"]:
        for expected in case["alert_rule_test"]:
            found[expected["alertname"]].add(bool(expected["exp_alerts"]))
    assert len(ALERTS) >= 20
    assert found == {name: {True, False} for name in ALERTS}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_how_much_and_what_to_do(name: str) -> None:
    alert = ALERTS[name]
    notes = alert["annotations"]
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert "$value" in notes["summary"]
    assert notes["description"].endswith(".")
    document, _, anchor = notes["runbook"].partition("#")
    assert anchor in anchors(ROOT / document)


@pytest.mark.parametrize("anchor", sorted({rule["annotations"]["runbook"] for rule in ALERTS.values()}))
def test_the_section_of_an_alert_names_it_and_has_a_command(anchor: str) -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    sections = {
        heading.lower().replace(" ", "-"): body
        for heading, body in re.findall(r"^###? ([^\n]+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    }
    section = sections[anchor.partition("#")[2]]
    mine = [name for name, rule in ALERTS.items() if rule["annotations"]["runbook"] == anchor]
    assert all(f"`{name}`" in section for name in mine)
    assert re.search(r"^(    \S|```sh$)", section, re.MULTILINE), "no command"


def test_alertmanager_takes_the_example_and_pages_for_what_is_critical() -> None:
    path = FOLDER / "alertmanager.yml"
    amtool("check-config", path)
    routes = "config", "routes", "test", f"--config.file={path}"
    assert amtool(*routes, "severity=critical").stdout.strip() == "pager"
    assert amtool(*routes, "severity=warning").stdout.strip() == "warnings"


def test_the_example_of_the_server_is_valid() -> None:
    promtool("check", "config", FOLDER / "prometheus.yml")
