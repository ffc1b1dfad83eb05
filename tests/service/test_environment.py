"""Settings from the environment and from files."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from scrapy.settings import Settings

from site_spider import options
from site_spider.errors import ConfigError
from site_spider.redaction import secrets_of
from site_spider.service.environment import SECRETS, apply_environment
from site_spider.service.settings_checks import check_names
from tests.project_settings import ours

FILE = Path(__file__).resolve().parents[2] / "resources" / "deploy" / "site_spider.env"


def settings_of(environ: dict[str, str], **cmdline: str) -> Settings:
    settings = ours(**cmdline)
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
        *(("""'{"a": "b"}'""", '{"a": "b"}'), ('"seeds"', "seeds"), ("'", "'"), ("'a\"", "'a\"")),
        *(("''", ""), ("a'b'", "a'b'"), (' "a" ', ' "a" ')),
    ],
)
def test_quotes_around_a_value_are_taken_away(value: str, expected: str) -> None:
    assert settings_of({"SITE_SEED_TOPIC": value})["SITE_SEED_TOPIC"] == expected


# --- settings that can hold a secret, read from files ---------------------------------------------


@pytest.mark.parametrize("name", SECRETS)
def test_a_file_holds_what_the_variable_would(tmp_path: Path, name: str) -> None:
    """Its path may be a setting; the command line comes before it, and both in the environment are refused."""
    file = tmp_path / "secret"
    file.write_text(' {"sasl.password": "hunter22"}\n')
    environ = {f"{name}_FILE": str(file)}
    for settings in (settings_of(environ), settings_of({}, **environ)):
        assert settings[name] == '{"sasl.password": "hunter22"}'
        assert "hunter22" in secrets_of(settings)
        check_names(settings, environ)
    assert settings_of(environ, **{name: "of the command line"})[name] == "of the command line"
    with pytest.raises(ConfigError, match="both in the environment"):
        check_names(settings_of(environ), {**environ, name: "another"})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((None, "No such file"), ("a folder", "Is a directory"), (b"", "is empty")),
        *((b"\xff\xfe", "not UTF-8"), (b"x" * 1_000_001, "more than")),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | str | None, reason: str) -> None:
    file = tmp_path if content == "a folder" else tmp_path / "secret"
    if isinstance(content, bytes):
        file.write_bytes(content)
    environ = {"SITE_REDIS_URL_FILE": str(file)}
    with pytest.raises(ConfigError, match=f"SITE_REDIS_URL_FILE.*{reason}"):
        check_names(settings_of(environ), environ)
