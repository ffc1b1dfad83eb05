"""Environment variables as settings, and one file of them for systemd, docker and a shell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from scrapy.settings import Settings

from site_spider import options
from site_spider.service.environment import apply_environment

FILE = Path(__file__).resolve().parents[2] / "resources" / "deploy" / "site_spider.env"


def settings_of(environ: dict[str, str]) -> Settings:
    settings = Settings()
    settings.setmodule("site_spider.settings", priority="project")
    apply_environment(settings, environ)
    return settings


def as_docker_reads() -> dict[str, str]:
    """`docker run --env-file`: what stands behind the equals sign, with its quotes."""
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def as_a_shell_reads() -> dict[str, str]:
    printed = subprocess.run(
        ["sh", "-c", 'set -a; . "$0"; set +a; env -0', str(FILE)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    ).stdout
    found = dict(line.split("=", 1) for line in printed.split("\0") if line)
    return {name: value for name, value in found.items() if name.startswith("SITE_")}


def test_docker_and_a_shell_read_the_same_settings() -> None:
    docker, shell = settings_of(as_docker_reads()), settings_of(as_a_shell_reads())
    assert as_docker_reads().keys() == as_a_shell_reads().keys()
    for name in as_docker_reads():
        assert docker[name] == shell[name], name
    assert options.mapping(docker, "SITE_KAFKA_OPTIONS")["sasl.mechanism"] == "SCRAM-SHA-512"
    assert options.mapping(docker, "SITE_ELASTICSEARCH_OPTIONS")["api_key"] == "change-me"


def test_systemd_reads_them_as_a_shell_does() -> None:
    """It knows quotes, and a backslash before a line end or a quote; none of the rest of a shell."""
    for name, value in as_docker_reads().items():
        assert re.fullmatch(r"[A-Z_]+", name)
        assert re.fullmatch(r"[\w.,:/=-]*|'[^'\\$`]*'", value), name


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("""'{"a": "b"}'""", '{"a": "b"}'),
        ('"seeds"', "seeds"),
        ("'", "'"),
        ("'a\"", "'a\""),
        ("''", ""),
        ("a'b'", "a'b'"),
        (' "a" ', ' "a" '),
    ],
)
def test_quotes_around_a_value_are_taken_away(value: str, expected: str) -> None:
    assert settings_of({"SITE_SEED_TOPIC": value})["SITE_SEED_TOPIC"] == expected
