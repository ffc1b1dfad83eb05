"""Which errors a server or a setting is to blame for, and which are ours."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import site_spider
from site_spider.errors import SiteSpiderError
from site_spider.service import exit_code

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
    codes = {kind.__name__: exit_code.of(kind.__new__(kind), 70) for kind in subclasses(SiteSpiderError)}
    assert {name for name, code in codes.items() if code == exit_code.UNAVAILABLE} == AWAY
    assert {name for name, code in codes.items() if code == exit_code.CONFIG} == {"ConfigError"}
    assert {"LedgerError", "BatchError", "SeedError", "SinkRejected"} <= {
        name for name, code in codes.items() if code == exit_code.SOFTWARE
    }
