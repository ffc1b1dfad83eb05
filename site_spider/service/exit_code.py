"""Exit codes of `scrapy crawl`, after sysexits.h."""

from __future__ import annotations

from site_spider.contracts.done_store import DoneUnavailable
from site_spider.errors import ConfigError, LogUnavailable, SinkUnavailable, TopicMissing

UNAVAILABLE = 69  # a server is away
SOFTWARE = 70  # ended by an error of its own, to be started again
SETUP = 71  # an error of its own before it could take a seed: starting again seldom helps
CONFIG = 78  # a setting cannot be used: starting again does not help


_AWAY = (LogUnavailable, TopicMissing, SinkUnavailable, DoneUnavailable)  # with their subclasses


def of(error: BaseException, own: int) -> int:
    """The code for what ended a crawl; `own` unless a setting or a server is to blame.

    The other errors of ours are answers to one seed, record or request, or, as LedgerError and BatchError,
    bugs: whatever of them ends a crawl is an error of its own.
    """
    if isinstance(error, ConfigError):
        return CONFIG
    return UNAVAILABLE if isinstance(error, _AWAY) else own
