"""`scrapy service --check`, and which errors a server, a setting or we are to blame for."""

from __future__ import annotations

import pkgutil
import socket
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

import site_spider
from site_spider import Addon, SeedSpider
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.contracts.seed_log import Granted, Right
from site_spider.errors import (
    EXIT_CONFIG,
    EXIT_SETUP,
    EXIT_SOFTWARE,
    EXIT_UNAVAILABLE,
    LogUnavailable,
    SiteSpiderError,
    exit_code_of,
)
from site_spider.redaction import masked
from site_spider.service import config, environment
from site_spider.service.check import examine, origins
from tests.in_process.engine import crawl, settings_for
from tests.project_settings import ours as settings


class OfServer:
    """As scrapy-redis's: any class with these is a scheduler."""

    has_pending_requests = enqueue_request = next_request = bool

    def __init__(self) -> None:
        raise ConnectionError("Error 111 connecting to localhost:6379. Connection refused.")


class Shop(SeedSpider):
    name = "shop"
    custom_settings = {"SITE_SEED_TOPIC": "shop", "DEPTH_LIMIT": 7}  # noqa: RUF012


def test_each_setting_has_the_one_who_set_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "options"
    secret.write_text('{"sasl.password": "short"}')
    given = {"SITE_CONSUMER_GROUP": "told", "SITE_KAFKA_OPTIONS_FILE": str(secret)}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    made = settings(SITE_SINKS="kafka")
    Shop.update_settings(made)
    found = {one.name: one for one in origins(made, Shop)}
    assert {name: (found[name].value, found[name].source) for name in (
        *("SITE_SINKS", "SITE_CONSUMER_GROUP", "SITE_KAFKA_OPTIONS", "SITE_SEED_TOPIC", "DEPTH_LIMIT"),
        "SITE_LINK_SCOPE",
    )} == {
        "SITE_SINKS": ("kafka", "command line"),
        "SITE_CONSUMER_GROUP": ("told", "environment"),
        "SITE_KAFKA_OPTIONS": ('{"sasl.password": "***"}', f"file {secret}"),
        "SITE_SEED_TOPIC": ("shop", "custom_settings of shop"),
        "DEPTH_LIMIT": (7, "custom_settings of shop"),
        "SITE_LINK_SCOPE": ("host", "site_spider.settings"),
    }  # fmt: skip
    assert [name for name, one in found.items() if one.is_default and "SITE_" not in name] == ["CONCURRENT_REQUESTS"]


def test_in_another_project_its_own_settings_are_told_from_those_of_the_add_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "shop.settings")
    made = Settings({"ADDONS": {Addon: 300}, "DOWNLOAD_DELAY": 1})
    environment.apply_our_settings(made)
    found = {one.name: (one.source, one.is_default) for one in origins(made, Shop)}
    assert found["DOWNLOAD_DELAY"] == ("shop.settings", False)
    assert found["SITE_SEED_TOPIC"] == ("site_spider.settings", True)
    assert "ADDONS" not in found


def test_a_check_in_another_project_takes_the_handlers_of_a_crawl(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Scrapy's own one without a reactor warned of itself."""
    made = Settings({"ADDONS": {Addon: 300}, "SITE_DATA_DIR": str(tmp_path)})
    environment.apply_our_settings(made)
    assert next(examine(made, SeedSpider)).code == 0
    assert "Aiohttp" not in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("SITE_SPILL_KEY", "k", "***"),
        ("SITE_KAFKA_OPTIONS", {"sasl.password": "p", "acks": "all"}, {"sasl.password": "***", "acks": "all"}),
        ("SITE_KAFKA_OPTIONS", '{"sasl.password": ', "***"),
        ("SITE_ELASTICSEARCH_OPTIONS", '{"basic_auth": ["u", "p"]}', '{"basic_auth": "***"}'),
        ("SITE_REDIS_URL", "redis://u:secret@h:1/0", "redis://u:***@h:1/0"),
        ("SITE_ELASTICSEARCH_OPTIONS", {"headers": {"X-Gate": "s"}}, {"headers": {"X-Gate": "***"}}),
        ("SITE_ELASTICSEARCH_OPTIONS", '{"headers": {"X-Gate": "s"}}', '{"headers": {"X-Gate": "***"}}'),
        ("SITE_KAFKA_OPTIONS", {"sasl.password": 123456, "linger.ms": 5}, {"sasl.password": "***", "linger.ms": 5}),
        ("FEEDS", {"ftp://u:opensesame@h/%p.jl": {"format": "csv"}}, {"ftp://u:***@h/%p.jl": {"format": "csv"}}),
        ("FEEDS", {"ftp://u:open@sesame@h/a@b.jl": {}}, {"ftp://u:***@h/a@b.jl": {}}),
        ("FEEDS", {"/items/folder:x@y.csv": {"format": "csv"}}, {"/items/folder:x@y.csv": {"format": "csv"}}),
        ("COOKIES_ENABLED", "false", "false"),
        ("COOKIES_ENABLED", True, True),
        ("SITE_SPILL_KEY", "", ""),
        ("CONCURRENT_REQUESTS", 64, 64),
    ],
)
def test_secrets_are_masked(name: str, value: Any, shown: Any) -> None:
    """Short ones as well."""
    assert masked(name, value) == shown


class Log(LocalSeedLog):
    """A Kafka that says what it is told to."""

    def __init__(self, missing: dict[str, Granted | None] | None) -> None:
        super().__init__(Path("unused"))
        self.address = "kafka:9092"
        self._missing = missing  # None: it does not answer

    def check(self, _seconds: float) -> None:
        if self._missing is None:
            raise LogUnavailable("no answer from Kafka at kafka:9092")

    def granted(self, rights: Sequence[Right]) -> list[Granted]:
        missing = self._missing or {}
        return [missing.get(right.name) or Granted(right, ()) for right in rights]

    def partitions(self, _topic: str) -> int:
        return 1


def examined(monkeypatch: pytest.MonkeyPatch, log: Log, folder: Path) -> dict[str, tuple[str, int]]:
    monkeypatch.setattr(config, "seed_log", lambda _settings: log)
    made = settings(SITE_KAFKA_BROKERS="kafka:9092", SITE_DATA_DIR=str(folder), JOBDIR=str(folder / "job"))
    with socket.create_server(("127.0.0.1", 0)) as crawl_beside:
        made.set("SITE_METRICS_ADDRESS", "{}:{}".format(*crawl_beside.getsockname()))
        return {found.what: (found.says, found.code) for found in examine(made, SeedSpider)}


def test_rights_are_said_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without some a crawl would not start; without others something beside it does not work."""
    letters = Right("topic", "seeds.dead-letters", ("Write",))
    stats = Right("topic", "seeds.stats", ("Read", "Write"))
    group = Right("group", "site_spider", ("Read",))
    orders = Right("topic", "seeds.tasks", ("Read", "Write"))
    log = Log({
        letters.name: Granted(letters, ("Create",), exists=False),
        stats.name: Granted(stats, ("Write",)),
        group.name: Granted(group, ("Read",)),
        orders.name: Granted(orders, ("Read",)),
    })  # fmt: skip
    found = examined(monkeypatch, log, tmp_path)
    assert found["topic seeds"] == ("this user may read and write, 1 partition", 0)
    missing = "does not exist, and this user may not create it: create it"
    assert found["topic seeds.dead-letters"] == (missing, 0)
    assert found["topic seeds.stats"] == ("this user may not write; a crawl starts without", 0)
    assert found["group site_spider"] == ("this user may not read", 78)
    assert found["topic seeds.tasks"] == ("this user may not read", 78)
    assert (found["sink local"][1], found["metrics"][1]) == (0, 0)
    assert not [*tmp_path.iterdir()]


def test_servers_that_are_away_and_wrong_settings_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = examined(monkeypatch, Log(None), tmp_path)
    assert found["Kafka"] == ("no answer from Kafka at kafka:9092", 69)
    (tmp_path / "file").touch()
    found = examined(monkeypatch, Log({}), tmp_path / "file" / "data")
    assert "Not a directory" in found["sink local"][0]
    assert found["sink local"][1] == 78
    monkeypatch.setattr("site_spider.adapters.local.results.LocalSink.check", lambda _self: 1 / 0)  # a bug of a sink
    assert examined(monkeypatch, Log({}), tmp_path)["sink local"] == ("ZeroDivisionError('division by zero')", 71)


AWAY = {
    "LogUnavailable", "LogSilent", "CommitInDoubt", "GroupRebalances", "_Ended", "TopicMissing",
    "SinkUnavailable", "DoneUnavailable",
}  # fmt: skip


def subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("site_spider."):
            yield each
            yield from subclasses(each)


def test_every_error_of_ours_has_its_exit_code() -> None:
    """A bug is not taken for a server that is away; a new error has to be put somewhere."""
    for module in pkgutil.walk_packages(site_spider.__path__, "site_spider."):
        import_module(module.name)
    codes = {kind.__name__: exit_code_of(kind.__new__(kind), 70) for kind in subclasses(SiteSpiderError)}
    assert {name for name, code in codes.items() if code == EXIT_UNAVAILABLE} == AWAY
    assert {name for name, code in codes.items() if code == EXIT_CONFIG} == {"ConfigError"}
    assert {"LedgerError", "BatchError", "SeedError", "SinkRejected"} <= {
        name for name, code in codes.items() if code == EXIT_SOFTWARE
    }


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"DUPEFILTER_CLASS": "no.such.Filter"}, "DUPEFILTER_CLASS names 'no.such.Filter', which cannot be loaded: "),
        ({"EXTENSIONS": {f"{__name__}.NoSuch": 1}}, f"EXTENSIONS names '{__name__}.NoSuch', which cannot be loaded: "),
        ({"DOWNLOADER_MIDDLEWARES": {"none": 1}}, "DOWNLOADER_MIDDLEWARES names 'none', which cannot be loaded: "),
    ],
)
def test_the_setting_with_a_class_that_is_not_there_is_named(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    (found,) = examine(settings_for(tmp_path, **settings), SeedSpider)
    assert (found.what, found.code) == ("settings", EXIT_CONFIG)
    assert found.says.startswith(said)


def test_a_module_that_fails_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its traceback says where."""
    (tmp_path / "own_parts.py").write_text("class Pipeline:\n    size = undefined\n")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = examine(settings_for(tmp_path, ITEM_PIPELINES={"own_parts.Pipeline": 1}), SeedSpider)
    assert (found.what, found.code) == ("settings", EXIT_SETUP)
    assert "name 'undefined' is not defined" in found.says


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"SITE_KAFKA_BROKERS": "no port"}, ("SITE_KAFKA_BROKERS", "no port")),
        ({"SITE_SINKS": "elasticsearch"}, ("SITE_ELASTICSEARCH_HOSTS",)),
        ({"SITE_SINKS": "postgres"}, ("SITE_SINKS", "postgres")),
        ({"SITE_MAX_SEEDS_IN_FLIGHT": "many"}, ("SITE_MAX_SEEDS_IN_FLIGHT", "many")),
        ({"CONCURRENT_REQUESTS": "abc"}, ("CONCURRENT_REQUESTS", "abc")),
        ({"CONCURRENT_REQUESTS": "0"}, ("CONCURRENT_REQUESTS", "1 or more")),
        ({"CONCURRENT_REQUESTS_PER_DOMAIN": 0}, ("CONCURRENT_REQUESTS_PER_DOMAIN", "1 or more")),
        ({"CONCURRENT_ITEMS": 0}, ("CONCURRENT_ITEMS", "1")),
        ({"REACTOR_THREADPOOL_MAXSIZE": 0}, ("REACTOR_THREADPOOL_MAXSIZE", "1")),
        ({"RETRY_HTTP_CODES": "a,b"}, ("RETRY_HTTP_CODES", "'a'")),
        ({"RETRY_HTTP_CODES": 503}, ("RETRY_HTTP_CODES", "a number", "in a list")),
        ({"RETRY_EXCEPTIONS": "no.such.Error"}, ("RETRY_EXCEPTIONS", "'no.such.Error'", "cannot be loaded")),
        ({"RETRY_EXCEPTIONS": ["json.loads"]}, ("RETRY_EXCEPTIONS", "'json.loads'", "classes of exceptions")),
        ({"ROBOTSTXT_PARSER": "no.such.Parser"}, ("ROBOTSTXT_PARSER", "'no.such.Parser'", "cannot be loaded")),
        ({"TWISTED_DNS_RESOLVER": "no.such.Resolver"}, ("TWISTED_DNS_RESOLVER", "'no.such.Resolver'", "be loaded")),
        ({"SITE_SEED_LOG_CLASSES": {"kafka": "own.Log"}}, ("SITE_SEED_LOG_CLASSES", "cannot be loaded")),
        ({"ROBOTSTXT_OBEY": "maybe"}, ("ROBOTSTXT_OBEY", "maybe")),
        ({"COOKIES_ENABLED": "off"}, ("COOKIES_ENABLED", "true and false")),
        ({"SITE_DEAD_LETTER_TOPIC": "non:sense !"}, ("SITE_DEAD_LETTER_TOPIC", "non:sense !")),
        ({"SITE_RETRY_TIMES_BY_REASON": {"Timeout": 1}}, ("SITE_RETRY_TIMES_BY_REASON", "Timeout")),
        ({"SITE_PROXIES": "proxy:80"}, ("SITE_PROXIES",)),
        ({"SITE_METRICS_ADDRESS": "9410"}, ("SITE_METRICS_ADDRESS",)),
        ({"SITE_SOURCES_DIR": "/nodir"}, ("SITE_SOURCES_DIR",)),
        ({"DOWNLOAD_SLOTS": {"a": 1}}, ("DOWNLOAD_SLOTS",)),
        ({"SITE_IDLE_CLOSE_SECONDS": "soon"}, ("SITE_IDLE_CLOSE_SECONDS", "soon")),
        ({"SITE_IDLE_CLOSE_SECONDS": -1}, ("SITE_IDLE_CLOSE_SECONDS", "0")),
        ({"SITE_STATS_WHEN": ""}, ("SITE_STATS_WHEN", "interval, idle, close")),
        ({"SITE_STATS_WHEN": "interval,sometimes"}, ("SITE_STATS_WHEN", "interval, idle, close")),
        *(({"SITE_STATS_TOPIC": name}, ("SITE_STATS_TOPIC",)) for name in ("seeds", "seeds.dead-letters", "no topic")),
        ({"SITE_STATS_TO": "kafka"}, ("SITE_STATS_TO", "SITE_KAFKA_BROKERS is empty")),
        ({"SITE_STATS_TO": "redis"}, ("SITE_REDIS_URL is empty",)),
        (
            {"SITE_STATS_TO": "hbase"},
            ("SITE_STATS_TO names 'hbase', but must name local, elasticsearch, redis, kafka,",),
        ),
        ({"SCHEDULER": "scrapy.core.scheduler.Scheduler"}, ("SCHEDULER", "Leave it out")),
        ({"SCHEDULER": f"{__name__}.OfServer"}, ("SCHEDULER", "OfServer", "Leave it out")),
        ({"DOWNLOADER": "scrapy.core.downloader.Downloader"}, ("DOWNLOADER", "Leave it out")),
        ({"ITEM_PROCESSOR": "scrapy.pipelines.ItemPipelineManager"}, ("ITEM_PROCESSOR", "Leave it out")),
        ({"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}, ("TWISTED_REACTOR", "Leave it out")),
        ({"SITE_STATS_TO": "no.such.Store"}, ("cannot be loaded",)),
        ({"SITE_STATS_TO": "collections.OrderedDict"}, ("has no class method for_statistics",)),
    ],
)
def test_a_wrong_setting_is_named_before_a_crawl_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], said: tuple[str, ...]
) -> None:
    """Some are read when the crawler is made, the others when the service starts. A check finds them all."""
    (found,) = examine(settings_for(tmp_path, **settings), SeedSpider)
    assert (found.what, found.code) == ("settings", EXIT_CONFIG)
    assert all(word in found.says for word in said)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(SiteSpiderError) as ended:
        crawl(tmp_path, [], **settings)
    logged = [record.getMessage() for record in caplog.records if "Cannot start: " in record.getMessage()]
    (line,) = logged or [str(ended.value)]
    assert all(word in line for word in said)
