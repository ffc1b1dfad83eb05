"""The whole hierarchy of errors.

A message names the setting or the offset, the value seen, and the remedy.
"""

from __future__ import annotations


class SiteSpiderError(Exception):
    """Whatever this project raises on purpose."""


class ConfigError(SiteSpiderError):
    """A setting cannot be used: the message names it, its value and what to set instead."""


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


class LogSilent(LogUnavailable):
    """The seed log did not answer at all, so other members may own our partitions by now."""


class GroupRebalances(LogUnavailable):
    """A commit was refused because of a rebalance; soon it will be accepted, or the partitions are lost."""


class CommitInDoubt(LogUnavailable):
    """A transaction was sent off and its end is not known; the seed log has to be asked for it."""


class TopicMissing(SiteSpiderError):
    """The topic does not exist in the seed log (yet)."""


class SinkError(SiteSpiderError):
    """A sink could not take results."""


class SinkUnavailable(SinkError):
    """The sink is away or overloaded: keep the batch and try again."""


class SinkRejected(SinkError):
    """The server refuses this one record for its own sake: it becomes a dead letter."""
