"""The whole hierarchy of errors.

A message names the setting or the offset, the value seen, and the remedy. Where a setting or a server is to
blame for what ends a crawl, the error has the exit code. The other errors are answers to one seed, record or
request, or, as LedgerError and BatchError, bugs: whatever of them ends a crawl is an error of its own.
"""

from __future__ import annotations

from typing import ClassVar

# of `scrapy crawl`, after sysexits.h
EXIT_UNAVAILABLE = 69  # a server is away
EXIT_SOFTWARE = 70  # ended by an error of its own, to be started again
EXIT_SETUP = 71  # an error of its own before it could take a seed: starting again seldom helps
EXIT_CONFIG = 78  # a setting cannot be used: starting again does not help


class SiteSpiderError(Exception):
    """Whatever this project raises on purpose."""

    exit_code: ClassVar[int | None] = None  # of a crawl that it ends; None: that of errors of its own


def exit_code_of(error: BaseException, own: int) -> int:
    """The code for what ended a crawl; `own` unless a setting or a server is to blame."""
    return (isinstance(error, SiteSpiderError) and error.exit_code) or own


class ConfigError(SiteSpiderError):
    """A setting cannot be used: the message names it, its value and what to set instead."""

    exit_code = EXIT_CONFIG


class SeedError(SiteSpiderError):
    """A message is not a valid seed. `reason` goes into the dead letter's `error` header."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LedgerError(SiteSpiderError):
    """An illegal move was asked of the ledger; nothing was changed."""


class BatchError(SiteSpiderError):
    """An illegal move was asked of the batcher; nothing was changed."""


class LogUnavailable(SiteSpiderError):
    """The seed log (Kafka or the embedded one) does not answer; trying again may help."""

    exit_code = EXIT_UNAVAILABLE


class LogSilent(LogUnavailable):
    """The seed log did not answer at all, so other members may own our partitions by now."""


class GroupRebalances(LogUnavailable):
    """A commit was refused because of a rebalance; soon it will be accepted, or the partitions are lost."""


class CommitInDoubt(LogUnavailable):
    """A transaction was sent off and its end is not known; the seed log has to be asked for it."""


class TopicMissing(SiteSpiderError):
    """The topic does not exist in the seed log (yet)."""

    exit_code = EXIT_UNAVAILABLE


class SinkError(SiteSpiderError):
    """A sink could not take results."""


class SinkUnavailable(SinkError):
    """The sink is away or overloaded: keep the batch and try again."""

    exit_code = EXIT_UNAVAILABLE


class SinkRejected(SinkError):
    """The server refuses this one record for its own sake: it becomes a dead letter."""
