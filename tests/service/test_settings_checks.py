"""Settings that nobody reads, and values of no use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from site_spider.errors import ConfigError
from site_spider.service.environment import apply_environment
from site_spider.service.settings_checks import check_names, check_scrapy_settings
from tests.project_settings import ours

# --- a setting that nobody reads ends the start, in whatever way it is given ----------------------


class OwnSink:
    setting_names = ("SITE_OWN_FOLDER",)


def refusal(environ: Mapping[str, str] = {}, priority: str = "cmdline", **given: Any) -> str:
    try:
        check_names(ours(priority, **given), environ)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("name", "near"),
    [
        *(("SITE_SINK", "SITE_SINKS"), ("SITE_sinks", "SITE_SINKS"), ("SITE_BROKERS", "SITE_KAFKA_BROKERS")),
        *(("SITE_ELASTIC_SEARCH_HOSTS", "SITE_ELASTICSEARCH_HOSTS"), ("SITE_SEEDS_TOPIC", "SITE_SEED_TOPIC")),
        *(("SITE_CONCURRENT_REQUESTS", "CONCURRENT_REQUESTS"), ("SITE_CONCURENT_REQUESTS", "CONCURRENT_REQUESTS")),
        *(("SITE_STATS_INTERVAL", "SITE_STATS_INTERVAL_SECONDS"), ("SITE_PORT", "SITE_HBASE_PORT")),
        *(("SITE_GROUP", "SITE_CONSUMER_GROUP"), ("SITE_FIELDS", "SITE_RESULT_FIELDS")),
    ],
)
@pytest.mark.parametrize("priority", ["spider", "cmdline", "environment"])
def test_the_nearest_known_name_is_named(name: str, near: str, priority: str) -> None:
    """In custom_settings, with -s and in the environment."""
    said = refusal({name: "x"}) if priority == "environment" else refusal(priority=priority, **{name: "x"})
    assert said.startswith(f"{name} is not a setting: did you mean {near}?")


@pytest.mark.parametrize("name", ["SITE_LOG", "SITE_DELAY", "SITE_BOGUS", "SITE_HOST", "SITE_DIR", "SITE_SEED"])
def test_a_name_that_has_little_but_the_prefix_in_common_is_not_proposed(name: str) -> None:
    """Neither MAIL_HOST, JOBDIR or FEEDS, which are Scrapy's."""
    assert refusal({name: "x"}) == f"{name} is not a setting. docs/settings.md has all of them."


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
    environ = {name: str(value)} if priority == "environment" and not isinstance(value, dict) else {}
    said = (
        refusal(environ) if environ else refusal(priority=priority.replace("environment", "cmdline"), **{name: value})
    )
    assert said == f"{name} is not a setting: did you mean {near}?"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("DOWNLOAD_TIMEOUT", "soon"), ("DOWNLOAD_DELAY", -1), ("DOWNLOAD_DELAY", float("inf"))),
        *(("CONCURRENT_REQUESTS", "many"), ("CONCURRENT_REQUESTS", 0), ("COOKIES_ENABLED", "perhaps")),
    ],
)
def test_numbers_and_switches_of_scrapys_are_read_before_scrapy_fails_on_them(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} "):
        check_scrapy_settings(ours(**{name: value}))


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


@pytest.mark.parametrize("value", ["yes", "No", "on", "OFF", "TRUE", "0", True, "maybe", "", 2])
def test_our_switches_may_be_said_in_words(value: Any) -> None:
    """Unlike Scrapy's."""
    refused = "SITE_FOLLOW_NOFOLLOW is" in refusal(SITE_FOLLOW_NOFOLLOW=value)
    assert refused == (value in ("maybe", 2))


def test_parts_without_a_number_and_variables_that_are_no_json_are_refused() -> None:
    """Scrapy's settings of this kind as well, and a variable that another program may have meant."""
    assert "EXTENSIONS has 'x' for mine.Part" in refusal(EXTENSIONS={"mine.Part": "x"})
    for value in ("broken", "[1]", "7"):
        environ = {"FEEDS": value}
        apply_environment(settings := ours(), environ)
        assert refusal(environ, FEEDS=settings["FEEDS"]).startswith("FEEDS ")
    assert refusal({"FEEDS": "'{}'", "DOWNLOAD_SLOTS": ""}) == ""


def test_a_text_that_is_not_utf8_is_refused_unless_it_names_a_file() -> None:
    """As of an environment file in Latin-1: no document, header or statement of SQL would take it."""
    for name in ("SITE_CONSUMER_GROUP", "USER_AGENT"):
        assert refusal(**{name: "caf\udce9"}) == f"{name} is 'caf\\udce9', but must be UTF-8."
    assert refusal(SITE_DATA_DIR="caf\udce9", SITE_URL_RULES="caf\udce9", LOG_FILE="caf\udce9") == ""


def test_all_unknown_names_stand_in_one_line_without_their_values() -> None:
    """Those that are gone with what to do instead, and a name like no other all the same."""
    gone = {"SITE_TRACE_EVERY": "0", "SITE_KAFKA_GROUP_PROTOCOL": "classic"}
    said = refusal({"SITE_SPILL_KEYS": "s3cret", **gone}, SITE_SINK="s3cret", SITE_QQQQQQQQ="x")
    assert said == (
        "SITE_KAFKA_GROUP_PROTOCOL is gone: members speak the classic protocol. Remove it, and stop a group of another "
        "protocol as a whole before the first of these processes starts. "
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
