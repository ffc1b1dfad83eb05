"""A marked secret in every setting that can carry one: no command shows it, whatever goes wrong."""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.engine import scrapy_parts
from site_spider.errors import SiteSpiderError
from site_spider.redaction import redact_logs
from tests.adapters.raw_server import Asked, Said, answering, said
from tests.commands.project import Project
from tests.in_process import engine
from tests.in_process.engine import produce
from tests.real_servers import ROOT
from tools.deployment.deployment import wait_until

SECRET = "m4rk3d-s3cr3t"
MARKS = [SECRET, "m4rk3d", *(b64encode(f"{user}:{SECRET}".encode()).decode() for user in ("bob", "id", ""))]
NOWHERE = "127.0.0.1:9"
SCRAPY = [str(Path(sys.executable).with_name("scrapy"))]

COMMANDS = [["results"], ["progress"], ["dead-letters"], ["settings", "--get", "SITE_SEED_TOPIC"]]


def kafka(options: object, brokers: str = NOWHERE) -> dict[str, Any]:
    return {"SITE_KAFKA_BROKERS": brokers, "SITE_KAFKA_OPTIONS": options}


def elasticsearch(options: object = None, hosts: str = f"http://{NOWHERE}") -> dict[str, Any]:
    settings = {"SITE_SINKS": "elasticsearch", "SITE_ELASTICSEARCH_HOSTS": hosts}
    return settings if options is None else settings | {"SITE_ELASTICSEARCH_OPTIONS": options}


def redis(url: str) -> dict[str, Any]:
    return {"SITE_DUPEFILTER": "redis", "SITE_REDIS_URL": url}


SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
WRONG: dict[str, dict[str, Any]] = {
    "Kafka's key": kafka({"security.protocol": "SSL", "ssl.key.pem": SECRET, "ssl.key.password": SECRET}),
    "Kafka's options in the wrong place": kafka({"sasl.mechanism": SECRET, "sasl.password": SECRET}),
    "Kafka's options of a wrong type": kafka({"sasl.password": [SECRET]}),
    "Kafka's options half": kafka('{"sasl.password": "' + SECRET + '",'),
    "Kafka's options as text": kafka(json.dumps(SECRET)),
    "brokers with a login": {"SITE_KAFKA_BROKERS": f"bob:{SECRET}@h"},
    "hosts that are none": elasticsearch(hosts=f"bob:{SECRET}@h"),
    "a host without its end": elasticsearch(hosts=f"https://bob:{SECRET}"),
    "Elasticsearch's options of a wrong type": elasticsearch(
        {"basic_auth": {"bob": SECRET}, "api_key": {"id": SECRET}}
    ),
    "Elasticsearch's options twice": elasticsearch(
        {"bearer_auth": SECRET, "api_key": SECRET, "headers": {"X-Gate": SECRET}}
    ),
    "Elasticsearch's options in a list": elasticsearch(json.dumps([SECRET])),
    "Redis without a scheme": redis(f"u:{SECRET}@h:1"),
    "Redis with a slash": redis(f"redis://u:m4rk3d/{SECRET}@h:1"),
    "Redis with a strange option": redis(f"redis://h:1/0?db={SECRET}"),
    "a proxy without a scheme": {"SITE_PROXIES": f"user:{SECRET}@proxy:8080"},
    "a proxy in another order": {"SITE_PROXIES": f"proxy:8080:user:{SECRET}"},
    "a proxy with blanks": {"SITE_PROXIES": f"http://user:{SECRET} x@proxy:8080"},
    "HBase's options": {"SITE_SINKS": "hbase", "SITE_HBASE_OPTIONS": {"password": SECRET, "protocol": SECRET}},
    "Kafka refuses": kafka(dict.fromkeys(("sasl.username", "sasl.password"), SECRET) | SASL),
    "Redis refuses": redis(f"redis://bob:{SECRET}@{NOWHERE}/0?password={SECRET}"),
    "others": {"SITE_CONSOLE_TOKEN": SECRET, "SITE_SPILL_KEY": SECRET, "MAIL_PASS": SECRET},
}
# what a crawl says of it, and the settings
AWAY: dict[str, tuple[str, dict[str, Any]]] = {
    "Elasticsearch refuses": (
        "SITE_ELASTICSEARCH_HOSTS", elasticsearch(hosts=f"http://bob:{SECRET}@{NOWHERE}"),
    ),
    "a proxy that rests": ("ProxyFailed", {"SITE_PROXIES": f"http://user:{SECRET}@{NOWHERE}"}),
}  # fmt: skip
ASKED = "Elasticsearch refuses"


def environment(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
    given = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    return kept | {
        "SITE_DATA_DIR": str(folder / "data"),
        "SITE_STARTUP_WAIT_SECONDS": "0",
        "SITE_STATS_INTERVAL_SECONDS": "1",
        "SITE_STOP_GRACE_SECONDS": "1",
        "SITE_ALLOW_PRIVATE_HOSTS": "true",
        "SITE_PROXY_TIMEOUTS": "1",
        "RETRY_TIMES": "0",
        "LOG_LEVEL": "DEBUG",
        "TMPDIR": str(folder),
        **given,
    }


def seeds(site: str) -> str:
    """Good ones and bad ones, all of which carry secrets."""
    with_secrets = {"cookies": {"session": SECRET}, "headers": {"Authorization": f"Basic {SECRET}"}}
    bad = [
        {"headers": {"Authorization": [SECRET, 7]}},
        {"headers": {"Authorization": f"{SECRET}\n"}},
        {"headers": {"Proxy-Authorization": SECRET}},
        {"cookies": {"session": [SECRET]}},
        {"cookies": SECRET},
    ]
    lines = [{"url": f"{site}/{number}", **more} for number, more in enumerate([with_secrets, *bad])]
    return "\n".join(map(json.dumps, [{"url": f"http://{NOWHERE}/", **with_secrets}, *lines]))


def run(arguments: list[str], variables: dict[str, str], folder: Path, given: str = "", until: str = "") -> str:
    """All that a command writes; it is stopped when it has written this, if it does not end by itself."""
    output = folder / "output"
    command = [*SCRAPY, *arguments]
    with (
        output.open("w") as file,
        subprocess.Popen(
            command, env=variables, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=file, stderr=file
        ) as process,
    ):
        assert process.stdin is not None
        process.stdin.write(given)
        process.stdin.close()

        def has_worked() -> bool:
            assert SECRET not in Path(f"/proc/{process.pid}/cmdline").read_text()
            return process.poll() is not None or bool(until and until in output.read_text())

        try:
            wait_until(has_worked, 300, f"{until!r} of {arguments}")
        finally:
            process.send_signal(signal.SIGTERM)
    return output.read_text()


def kept(folder: Path) -> Iterator[str]:
    """All results and statistics."""
    path = folder / "data" / "results.sqlite"
    if path.exists():
        with closing(sqlite3.connect(path)) as file:
            for table in ("results", "statistics"):
                if file.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                    yield from (row[0] for row in file.execute(f"SELECT document FROM {table}"))


def assert_nothing_shown(text: str) -> None:
    for mark in MARKS:
        line = next((line for line in text.splitlines() if mark in line), "")
        assert not line


def site(asked: Asked) -> Said:
    return said(b"<html>a page</html>", kind="text/html")


def crawl(folder: Path, settings: dict[str, Any], until: str, *, seed_by_command: bool = False) -> str:
    """Seeds that carry secrets, then a crawl; all that was written."""
    variables = environment(folder, settings)
    with answering(site) as address:
        written = ""
        if seed_by_command:
            written = run(["seed", "-"], variables, folder, seeds(address))
        elif "SITE_KAFKA_BROKERS" not in settings:
            log = LocalSeedLog(folder / "data")
            produce(log, "seeds", [line.encode() for line in seeds(address).splitlines()])
            log.close()
        written += run(["crawl", "crawl_spider"], variables, folder, until=until)
    assert until in written
    return written + "\n".join(kept(folder))


@pytest.mark.parametrize("name", AWAY)
def test_no_output_shows_a_secret(name: str, tmp_path: Path) -> None:
    """At DEBUG: log, stderr, stdout, process list, results and statistics, of a crawl and of the commands."""
    until, settings = AWAY[name]
    assert_nothing_shown(crawl(tmp_path, settings, until, seed_by_command=name == ASKED))
    variables = dict(environment(tmp_path, settings).items() - os.environ.items())
    for command in COMMANDS if name == ASKED else ():
        ran = Project(tmp_path / "data").within(*command, **variables)
        assert ran.stdout + ran.stderr
        assert_nothing_shown(ran.stdout + ran.stderr)


@pytest.fixture
def failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> Callable[[dict[str, Any]], str]:
    """All that a crawl within this process says as it fails at its start, tracebacks included."""

    def crawl(settings: dict[str, Any]) -> str:
        caplog.set_level(1)
        refused = refusal(tmp_path, settings)
        return caplog.text + "".join([*capfd.readouterr(), *traceback.format_exception(refused)])

    return crawl


def refusal(folder: Path, settings: dict[str, Any]) -> BaseException:
    given = {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}
    records = logging.getLogRecordFactory()
    scrapy_parts.install()  # this, and then the other, as the command does
    redact_logs(engine.settings_for(folder, **given))
    try:
        with pytest.raises((SiteSpiderError, RuntimeError)) as refused:  # Scrapy's own: the engine had begun
            engine.crawl(folder, [], until=lambda _: False, SITE_STARTUP_WAIT_SECONDS=0, **given)
    finally:
        logging.setLogRecordFactory(records)
    return refused.value


@pytest.mark.parametrize("name", WRONG)
def test_a_setting_that_is_refused_is_not_shown(name: str, failed: Callable[[dict[str, Any]], str]) -> None:
    """Neither by the error that `scrapy crawl` prints nor by the log; nor that of a server that is away."""
    written = failed(WRONG[name])
    assert any(setting in written for setting in WRONG[name])
    assert_nothing_shown(written)


def test_a_server_that_says_what_it_was_sent_reveals_nothing(failed: Callable[[dict[str, Any]], str]) -> None:
    """Its answer stands in the error, and with it the header that holds the login."""

    def echo(asked: Asked) -> Said:
        words = " ".join(f"{name}: {value}" for name, value in asked.headers.items())
        return said({"error": {"type": "security_exception", "reason": words}}, status=503)

    with answering(echo) as address:
        written = failed(elasticsearch({"basic_auth": ["bob", SECRET]}, address))
    assert "security_exception" in written
    assert_nothing_shown(written)


def test_seeds_with_secrets_are_crawled_in_silence(tmp_path: Path) -> None:
    """The seeds of the other tests do reach the site, so that there is something to show."""
    written = crawl(tmp_path, {"SITE_STOP_GRACE_SECONDS": "300"}, "Crawled (200)")  # to be stored, however slowly
    documents = [json.loads(text) for text in kept(tmp_path)]
    assert any(document.get("status") == 200 for document in documents)
    assert_nothing_shown(written)
