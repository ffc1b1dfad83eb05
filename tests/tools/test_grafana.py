"""resources/grafana: as described, valid by Grafana's types, with expressions that Prometheus takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from site_spider.observe.metrics.catalogue import METRICS
from tests.debian import program, promtool
from tests.observe.metrics.test_alerts import rules
from tests.observe.metrics.test_exposition import sample_names
from tools import grafana

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / ".servers" / "npm"
NPM = ("@grafana/schema@11.6.0", "typescript@5.9.3")
NPM_SECONDS = 300
TSC_SECONDS = 300
pytestmark = pytest.mark.xdist_group("dashboards")  # they install into one folder
VARIABLES = {"$__rate_interval": "5m", "$group": "g", "$instance": "a:1", "$slot": "1"}

DASHBOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in grafana.FOLDER.glob("*.json")}
PANELS = [
    pytest.param(panel, id=f"{name}-{panel['id']}-{panel['title']}")
    for name, dashboard in sorted(DASHBOARDS.items())
    for panel in dashboard["panels"]
    if panel["type"] != "row"
]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel.values[0]["targets"]]


def recorded() -> set[str]:
    return {rule["record"] for rule in rules("rules.yml")}


def names(expression: str) -> set[str]:
    """The metrics and recorded series of an expression."""
    bare = re.sub(r'"[^"]*"', "", expression)
    return set(re.findall(r"(?:(?:group|process):)?site_spider_\w+(?::\w+)?", bare))


def test_the_files_are_what_the_tool_writes() -> None:
    made = grafana.dashboards()
    assert set(DASHBOARDS) == {"fleet", "group", "process"} == set(made)
    for name, dashboard in made.items():
        text = (grafana.FOLDER / f"{name}.json").read_text(encoding="utf-8")
        assert text == grafana.written(dashboard), "run python -m tools.grafana"


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_has_title_unit_and_description(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]


@pytest.mark.parametrize("name", sorted(DASHBOARDS))
def test_no_two_panels_lie_on_each_other(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert 0 <= place["x"] <= place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_grafanas_types_accept_the_dashboards_and_no_unknown_key_or_wrong_type(tmp_path: Path) -> None:
    wrong = {"key": DASHBOARDS["fleet"] | {"refreshes": "30s"}, "type": DASHBOARDS["fleet"] | {"graphTooltip": "yes"}}
    said = _tsc(tmp_path, DASHBOARDS | wrong)
    assert set(re.findall(r"^(\w+)\.ts", said, re.MULTILINE)) == {"key", "type"}, said
    assert "refreshes" in said


def _tsc(folder: Path, dashboards: dict[str, Any]) -> str:
    _install()
    (folder / "node_modules").symlink_to(PACKAGES / "node_modules")
    for name, dashboard in dashboards.items():
        text = json.dumps(dashboard, ensure_ascii=False)
        text = text.replace('"mode": "absolute"', '"mode": ThresholdsMode.Absolute')  # an enum, not its text
        imports = "import {Dashboard, ThresholdsMode} from '@grafana/schema';"
        text = f"{imports}\nexport const d: Dashboard = {text};\n"
        (folder / f"{name}.ts").write_text(text, encoding="utf-8")
    command = [PACKAGES / "node_modules" / ".bin" / "tsc", "--noEmit", "--strict", "--skipLibCheck"]
    command += ["--moduleResolution", "node", "--target", "es2020", *(f"{name}.ts" for name in dashboards)]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=TSC_SECONDS)
    return done.stdout + done.stderr


def _install() -> None:
    """Grafana's types and the compiler, once for a checkout."""
    npm = program("npm", "npm")
    stamp = PACKAGES / "installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == " ".join(NPM):
        return
    PACKAGES.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", PACKAGES, *NPM]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=NPM_SECONDS)
    if done.returncode != 0:
        message = f"npm could not install {' '.join(NPM)}:\n{done.stderr[-2000:]}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    stamp.write_text(" ".join(NPM), encoding="utf-8")


def test_prometheus_accepts_every_expression(tmp_path: Path) -> None:
    filled = []
    for number, expression in enumerate(EXPRESSIONS):
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)  # noqa: PLW2901
        assert "$" not in expression
        filled.append({"record": f"panel:{number}", "expr": expression})
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": filled}]}), encoding="utf-8")
    promtool("check", "rules", path)


def test_dashboards_rules_and_alerts_name_what_is_exported() -> None:
    used = [*EXPRESSIONS, *(rule["expr"] for name in ("rules.yml", "alerts.yml") for rule in rules(name))]
    known = sample_names(*METRICS) | recorded()
    assert {name for expression in used for name in names(expression)} - known == set()


def test_every_metric_is_shown_in_a_dashboard() -> None:
    shown = {name for expression in EXPRESSIONS for name in names(expression)}
    shown |= {name for rule in rules("rules.yml") if rule["record"] in shown for name in names(rule["expr"])}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in sample_names(*METRICS)}
    assert families - {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} == set()
