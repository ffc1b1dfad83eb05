"""Which errors a server or a setting is to blame for, and which are ours."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import site_spider
from site_spider.errors import EXIT_CONFIG, EXIT_SOFTWARE, EXIT_UNAVAILABLE, SiteSpiderError, exit_code_of
from tests.in_process.engine import crawl

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
        ({"SITE_KAFKA_BROKERS": "no port"}, ("SITE_KAFKA_BROKERS", "no port")),
        ({"SITE_SINKS": "elasticsearch"}, ("SITE_ELASTICSEARCH_HOSTS",)),
        ({"SITE_SINKS": "postgres"}, ("SITE_SINKS", "postgres")),
        ({"SITE_MAX_SEEDS_IN_FLIGHT": "many"}, ("SITE_MAX_SEEDS_IN_FLIGHT", "many")),
        ({"CONCURRENT_REQUESTS": "abc"}, ("CONCURRENT_REQUESTS", "abc")),
        ({"RETRY_HTTP_CODES": "a,b"}, ("RETRY_HTTP_CODES", "'a'")),
        ({"ROBOTSTXT_OBEY": "maybe"}, ("ROBOTSTXT_OBEY", "maybe")),
        ({"SITE_DEAD_LETTER_TOPIC": "non:sense !"}, ("SITE_DEAD_LETTER_TOPIC", "non:sense !")),
    ],
)
def test_a_wrong_setting_is_named_before_a_crawl_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, str], said: tuple[str, ...]
) -> None:
    """Some are read when the crawler is made, the others when the service starts."""
    with pytest.raises(SiteSpiderError) as ended:
        crawl(tmp_path, [], **settings)
    logged = [record.getMessage() for record in caplog.records if "Cannot start: " in record.getMessage()]
    (line,) = logged or [str(ended.value)]
    assert all(word in line for word in said)
