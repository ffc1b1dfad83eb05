"""The contract of a store of dupefilter marks outside the process: on a server, or on a disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

from site_spider import options
from site_spider.errors import EXIT_UNAVAILABLE, ConfigError, SiteSpiderError
from site_spider.options import SettingsView


class DoneUnavailable(SiteSpiderError):
    """The dupefilter's store does not answer; trying again may help."""

    exit_code = EXIT_UNAVAILABLE


class DoneStore(ABC):
    """Keeps the fingerprints of what is done, for other processes and for the next start.

    All its methods may wait, so they are called on threads: at most one call of `known`
    and one of `add` at a time. All but `close` raise DoneUnavailable, after which they may
    be called again. To add twice is as good as once.
    """

    name: ClassVar[str]
    cache_seconds: float  # how long an answer of `known` may be relied on

    @classmethod
    @abstractmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """The store that the settings describe; nothing is opened. Raises ConfigError."""

    @abstractmethod
    def open(self) -> None:
        """See whether it can be used, and create what is missing."""

    @abstractmethod
    def known(self, fingerprints: Sequence[bytes]) -> set[bytes]:
        """Those of them that are kept."""

    @abstractmethod
    def add(self, fingerprints: Sequence[bytes]) -> None:
        """Keep them."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is open. Never raises."""


def bloom_limits(settings: SettingsView) -> tuple[int, float]:
    """SITE_BLOOM_CAPACITY and SITE_BLOOM_ERROR_RATE. Raises ConfigError."""
    capacity = options.integer(settings, "SITE_BLOOM_CAPACITY", minimum=1)
    error_rate = options.seconds(settings, "SITE_BLOOM_ERROR_RATE", maximum=0.5)
    if error_rate == 0:
        raise ConfigError("SITE_BLOOM_ERROR_RATE is 0, but a Bloom filter errs; use SITE_DUPEFILTER=memory.")
    return capacity, error_rate
