"""What is secret in settings, and texts without it."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from scrapy.settings import Settings

from site_spider.engine import scrapy_parts
from site_spider.redaction import HIDDEN, Redaction, redact_logs, secrets_of, without_secrets
from site_spider.text import LONGEST_LINE

SECRET = 'm4rk3d/"sé cret"'
QUOTED = quote(SECRET, safe="")

SETTINGS: list[dict[str, Any]] = [
    {"SITE_KAFKA_OPTIONS": {"sasl.username": "bob", "sasl.password": SECRET}},
    {"SITE_KAFKA_OPTIONS": json.dumps({"ssl.key.password": SECRET, "ssl.key.location": "/key"})},
    {"SITE_KAFKA_OPTIONS": {"sasl.oauthbearer.client.secret": SECRET}},
    {"SITE_KAFKA_OPTIONS": {"sasl.jaas.config": SECRET}},
    {"SITE_ELASTICSEARCH_OPTIONS": {"basic_auth": ["bob", SECRET]}},
    {"SITE_ELASTICSEARCH_OPTIONS": {"basic_auth": f"bob:{SECRET}"}},
    {"SITE_ELASTICSEARCH_OPTIONS": {"api_key": SECRET}},
    {"SITE_ELASTICSEARCH_OPTIONS": {"api_key": ["id", SECRET]}},
    {"SITE_ELASTICSEARCH_OPTIONS": {"bearer_auth": SECRET}},
    {"SITE_ELASTICSEARCH_OPTIONS": {"headers": {"X-Gate": SECRET}}},
    {"SITE_ELASTICSEARCH_HOSTS": f"http://h:9200,https://bob:{QUOTED}@h:9200"},
    {"SITE_REDIS_URL": f"redis://:{QUOTED}@h:1/0"},
    {"SITE_REDIS_URL": f"u:{QUOTED}@h:1"},
    {"SITE_REDIS_URL": f"redis://h:1/0?password={QUOTED}"},
    {"SITE_PROXIES": f"user:{QUOTED}@proxy:8080"},
    {"SITE_PROXIES": f"http://a:1,http://{QUOTED}@proxy:8080"},
    {"SITE_SPILL_KEY": SECRET},
    {"SITE_CONSOLE_TOKEN": SECRET},
    {"SITE_HBASE_OPTIONS": '{"transport": "framed", "password": ' + json.dumps(SECRET)},
    {"MAIL_PASS": SECRET},
    {"FEEDS": {f"ftp://bob:{QUOTED}@host/items.jl": {"format": "jsonlines"}}},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("form", [SECRET, QUOTED, repr(SECRET), json.dumps(SECRET), f"x{SECRET}y"])
def test_a_secret_is_hidden_in_every_form(settings: dict[str, Any], form: str) -> None:
    """However somebody writes it down."""
    shown = Redaction(secrets_of(settings))(f"cannot log in with {form} at h:1 as bob")
    assert "m4rk3d" not in shown
    assert shown.startswith("cannot log in with ")
    assert shown.endswith(" at h:1 as bob")
    assert HIDDEN in shown


def test_the_header_made_of_a_login_is_hidden() -> None:
    """A server may say what it was sent."""
    header = b64encode(b"bob:opensesame").decode()
    for settings in (
        {"SITE_ELASTICSEARCH_OPTIONS": {"basic_auth": ["bob", "opensesame"]}},
        {"SITE_ELASTICSEARCH_HOSTS": "http://bob:opensesame@h:1"},
        {"SITE_PROXIES": "http://bob:opensesame@h:1"},
    ):
        assert Redaction(secrets_of(settings))(f"Basic {header}") == f"Basic {HIDDEN}"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"SITE_HBASE_ROW_KEY": "url_id", "SITE_SEED_TOPIC": "seeds"},
        {"SITE_KAFKA_OPTIONS": {"ssl.key.location": "/etc/key.pem", "client.id": "crawler"}},
        {"SITE_ELASTICSEARCH_OPTIONS": {"ca_certs": "/etc/ca.pem", "basic_auth": ["elastic", ""]}},
        {"SITE_PROXIES": "http://proxy:8080", "SITE_REDIS_URL": "redis://h:6379/0"},
        {"SITE_REDIS_URL": "redis://default@h:6379/0"},
        {"SITE_SPILL_KEY": "abc"},  # too short to be told from words
        {"SITE_KAFKA_OPTIONS": {"sasl.oauthbearer.auth": True}},
    ],
)
def test_what_is_not_secret_stays(settings: dict[str, Any]) -> None:
    """Names of users, files and hosts."""
    text = "url_id seeds /etc/key.pem crawler /etc/ca.pem elastic proxy:8080 redis://default h:6379/0 abc True"
    assert Redaction(secrets_of(settings))(text) == text


@pytest.mark.parametrize("password", [12345678, "12345678"])
def test_a_password_of_digits_is_hidden(password: object) -> None:
    """Whoever writes JSON may leave the quotes out."""
    settings = {"SITE_KAFKA_OPTIONS": json.dumps({"sasl.password": password})}
    assert Redaction(secrets_of(settings))("no 12345678!") == f"no {HIDDEN}!"


def test_one_setting_by_itself() -> None:
    """For an error that is about it."""
    assert without_secrets("no s3cret!", "SITE_KAFKA_OPTIONS", {"sasl.password": "s3cret!"}) == f"no {HIDDEN}"


@pytest.mark.parametrize(
    "value", [None, 7, [], ["a", ["b"]], {"a": {"b": None}}, "{" * 100_000, "@", "[" * 9, "://@,@", "not UTF-8: \udce4"]
)
def test_a_setting_of_any_shape_is_looked_at(value: Any) -> None:
    """Those of a wrong type are refused elsewhere."""
    Redaction(secrets_of({"SITE_KAFKA_OPTIONS": value, "SITE_PROXIES": value, "SITE_SPILL_KEY": value}))("text")


# --- log records without the secrets of the settings -----------------------------------------------------

LOGGED = "m4rk3d-s3cr3t"
logger = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def redacted() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    redact_logs(Settings({"SITE_REDIS_URL": "redis://:of-another-crawl@h:1"}))
    redact_logs(Settings({"SITE_REDIS_URL": f"redis://:{LOGGED}@h:1"}))
    yield
    logging.setLogRecordFactory(before)


def test_messages_arguments_and_tracebacks_lose_secrets(caplog: pytest.LogCaptureFixture) -> None:
    """Wherever they stand."""
    try:
        int(f"cannot use {LOGGED}")
    except ValueError as error:
        logger.exception("a %s", LOGGED)
        logger.warning("%s", {"url": [LOGGED]}, exc_info=error)
    assert "m4rk3d" not in caplog.text
    assert "'cannot use ***'" in caplog.text


def test_other_records_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    """Also those of an earlier crawl's secrets: each call replaces the one before."""
    logger.warning("a %s of-another-crawl", "word")
    assert caplog.records[0].args == ("word",)
    assert "of-another-crawl" in caplog.text


def test_a_crawl_that_has_its_records_escaped_keeps_what_hides_secrets() -> None:
    """Scrapy makes its log formatter later."""
    scrapy_parts.install()
    redact_logs(Settings({"MAIL_PASS": LOGGED}))
    hiding = logging.getLogRecordFactory()
    scrapy_parts.install()
    assert logging.getLogRecordFactory() is hiding
    made = hiding("scrapy", logging.INFO, "", 0, "It says %s", (f"{LOGGED}\x1b",), None)
    assert made.getMessage() == "It says ***\\x1b"


def test_a_record_of_several_long_lines_is_escaped_once_and_after_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the cut left a part of a secret, and lines began twice with what they begin with."""
    scrapy_parts.install()
    redact_logs(Settings({"MAIL_PASS": LOGGED}))
    monkeypatch.setattr(scrapy_parts.EscapedRecord, "line_prefix", "[2] ")
    hiding = logging.getLogRecordFactory()
    made = hiding("scrapy", logging.INFO, "", 0, f"It says\n{LOGGED}", (), None)
    assert made.getMessage() == "It says\n[2] ***"
    width = LONGEST_LINE - 20 - len(LOGGED) // 2
    made = hiding("scrapy", logging.INFO, "", 0, f"{'x' * width}{LOGGED}{'y' * 100}", (), None)
    assert LOGGED[:4] not in made.getMessage()
