"""A real Prometheus server on loopback, with the project's rules at a pace of seconds."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.debian import program
from tools.deployment.deployment import wait_until

RULES = Path(__file__).resolve().parents[2] / "resources" / "prometheus"
_RANGE = re.compile(r"\[\d+[mh]\]")
_SHORT_RANGE = "[12s]"


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first = int(probe.getsockname()[1])
        with suppress(OSError, OverflowError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first


class Prometheus:
    """Asked over its own interface."""

    def __init__(self, port: int) -> None:
        self.port = port

    def asked(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}", timeout=300) as answer:
            return json.load(answer)["data"]

    def firing(self) -> dict[str, dict[str, Any]]:
        """The alerts that fire now, by name."""
        found = self.asked("alerts")["alerts"]
        return {alert["labels"]["alertname"]: alert for alert in found if alert["state"] == "firing"}

    def fires(self, name: str) -> dict[str, Any]:
        """The alert, as soon as it fires."""
        found: dict[str, Any] = wait_until(lambda: self.firing().get(name), 300, f"{name} to fire")
        return found

    def clears(self, name: str) -> None:
        wait_until(lambda: name not in self.firing(), 300, f"{name} to clear")


@contextmanager
def prometheus(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Scrapes these once a second."""
    folder.mkdir()
    for name in ("rules.yml", "alerts.yml"):
        rules = yaml.safe_load((RULES / name).read_text(encoding="utf-8"))
        for rule in (rule for group in rules["groups"] for rule in group["rules"]):
            rule.pop("for", None)
            rule["expr"] = _RANGE.sub(_SHORT_RANGE, rule["expr"])
        (folder / name).write_text(yaml.safe_dump(rules), encoding="utf-8")
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "500ms"},
        "rule_files": ["rules.yml", "alerts.yml"],
        "scrape_configs": [{"job_name": "site_spider", "static_configs": [{"targets": list(targets)}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    port = free_ports(1)
    command = [
        program("prometheus", "prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield _ready(Prometheus(port), folder / "log")
    finally:
        process.terminate()
        process.wait(300)


def _ready(server: Prometheus, log: Path) -> Prometheus:
    def answers() -> bool:
        with suppress(OSError):
            return bool(server.asked("status/runtimeinfo"))
        return False

    wait_until(answers, 300, f"Prometheus ({log.read_text(errors='replace')[-500:]})")
    return server
