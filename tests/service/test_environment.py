"""Settings from the environment and from files, and names that are none."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from site_spider import options
from site_spider.errors import ConfigError
from site_spider.secrets import secrets_of
from site_spider.service.environment import SECRETS, apply_environment, check_names

FILE = Path(__file__).resolve().parents[2] / "resources" / "deploy" / "site_spider.env"


def settings_of(environ: dict[str, str], **cmdline: str) -> Settings:
    settings = Settings()
    settings.setmodule("site_spider.settings", priority="project")
    settings.update(cmdline, priority="cmdline")
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


# --- a setting that nobody reads ends the start, in whatever way it is given ----------------------


class OwnSink:
    setting_names = ("SITE_OWN_FOLDER",)


def refusal(environ: Mapping[str, str] = {}, priority: str = "cmdline", **given: Any) -> str:
    settings = Settings()
    settings.setmodule("site_spider.settings", priority="project")
    settings.setdict(given, priority=priority)
    try:
        check_names(settings, environ)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("SITE_SINK", "SITE_SINKS"),
        ("SITE_BROKERS", "SITE_KAFKA_BROKERS"),
        ("SITE_ELASTIC_SEARCH_HOSTS", "SITE_ELASTICSEARCH_HOSTS"),
        ("SITE_sinks", "SITE_SINKS"),
        ("SITE_SEEDS_TOPIC", "SITE_SEED_TOPIC"),
        ("SITE_CONCURRENT_REQUESTS", "CONCURRENT_REQUESTS"),
    ],
)
@pytest.mark.parametrize("priority", ["spider", "cmdline", "environment"])
def test_the_nearest_known_name_is_named(name: str, near: str, priority: str) -> None:
    """In custom_settings, with -s and in the environment."""
    said = refusal({name: "x"}) if priority == "environment" else refusal(priority=priority, **{name: "x"})
    assert said.startswith(f"{name} is not a setting: did you mean {near}?")


@pytest.mark.parametrize("priority", ["project", "spider", "cmdline", "environment"])
@pytest.mark.parametrize(
    ("name", "near", "value"),
    [
        ("CONCURENT_REQUESTS", "CONCURRENT_REQUESTS", "5"),
        ("DOWNLOAD_DELAYS", "DOWNLOAD_DELAY", 0.5),
        ("ROBOTSTXT_OBAY", "ROBOTSTXT_OBEY", True),
        ("ITEM_PIPELINE", "ITEM_PIPELINES", {"mine.Pipeline": 100}),
    ],
)
def test_a_misspelt_setting_of_scrapys_is_refused(name: str, near: str, value: Any, priority: str) -> None:
    """Wherever it is given."""
    environ = {name: str(value)} if priority == "environment" and not isinstance(value, dict) else {}
    said = (
        refusal(environ) if environ else refusal(priority=priority.replace("environment", "cmdline"), **{name: value})
    )
    assert said == f"{name} is not a setting: did you mean {near}?"


def test_settings_of_others_are_left_alone() -> None:
    """Also those with nearly the name of one and another kind of value, short variables, and those of scripts."""
    assert refusal(USER_AGENTS=["a", "b"], PLAYWRIGHT_LAUNCH_OPTIONS={}, SENTRY_DSN="x") == ""
    assert refusal({"LOGLEVEL": "info", "PATH": "x", "CONCURRENT_REQUESTS": "x"}) == ""
    assert refusal(CONCURRENT_REQUESTS_PER_IP=3) == ""
    assert refusal({"SITE_SERVERS_DIR": "x", "WEBSITE_NAME": "x", "SITE": "x", "SITE_SINKS": "local"}) == ""


def test_options_that_cannot_be_read_are_refused_also_where_nobody_uses_them() -> None:
    """The brokers may come with the next start."""
    for value in ("{broken", "[1]", "7"):
        assert refusal(SITE_KAFKA_OPTIONS=value, SITE_KAFKA_BROKERS="").startswith("SITE_KAFKA_OPTIONS ")


def test_all_unknown_names_stand_in_one_line_without_their_values() -> None:
    """Those that are gone with what to do instead, and a name like no other all the same."""
    said = refusal({"SITE_SPILL_KEYS": "s3cret", "SITE_TRACE_EVERY": "0"}, SITE_SINK="s3cret", SITE_QQQQQQQQ="x")
    assert said == (
        "SITE_QQQQQQQQ is not a setting. SITE_SINK is not a setting: did you mean SITE_SINKS? "
        "SITE_SPILL_KEYS is not a setting: did you mean SITE_SPILL_KEY? "
        "SITE_TRACE_EVERY is gone: nothing is sent over OTLP: let a collector scrape SITE_METRICS_ADDRESS. "
        "docs/settings.md has all of them."
    )


def test_names_that_a_class_or_the_project_declares_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that cannot be loaded is left to whoever needs it. The settings file of a project is, say, this one."""
    own = {"SITE_SINKS": f"local,{__name__}.OwnSink"}
    assert refusal({"SITE_OWN_FOLDER": "x"}, **own) == ""
    assert refusal(SITE_OWN_FOLDER="x", **own) == ""
    assert "SITE_OWN_FOLDER" in refusal(SITE_OWN_FOLDER="x")
    assert "SITE_SINK is" in refusal(SITE_SINK="x", SITE_SINKS="no.such.Sink")
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", __name__)
    assert refusal(SITE_OF_THIS_PROJECT="x") == ""


SITE_OF_THIS_PROJECT = ""
