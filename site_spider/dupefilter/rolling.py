"""Marks that expire: by age, by count, or by hits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from site_spider import options
from site_spider.errors import ConfigError
from site_spider.options import SettingsView


@dataclass(frozen=True, slots=True)
class RollingLimits:
    """When a fingerprint is forgotten; 0: never for that reason."""

    seconds: float = 0  # after it was done
    count: int = 0  # this many others were done after it
    hits: int = 0  # it was met this many times since, and filtered each time


class RollingDone:
    """Fulfils dupefilter.seen.Done. To ask for a fingerprint is to meet it: it counts as a hit."""

    def __init__(self, limits: RollingLimits, now: Callable[[], float]) -> None:
        self._limits = limits
        self._now = now
        self._done: OrderedDict[bytes, float] = OrderedDict()  # since when; the oldest first
        self._hits: dict[bytes, int] = {}  # of those that were hit

    @classmethod
    def from_settings(cls, settings: SettingsView, now: Callable[[], float]) -> Self:
        """As SITE_ROLLING_SECONDS, SITE_ROLLING_COUNT and SITE_ROLLING_HITS say. Raises ConfigError."""
        limits = RollingLimits(
            options.seconds(settings, "SITE_ROLLING_SECONDS"),
            options.integer(settings, "SITE_ROLLING_COUNT"),
            options.integer(settings, "SITE_ROLLING_HITS"),
        )
        if not limits.seconds and not limits.count:
            raise ConfigError(
                "SITE_ROLLING_SECONDS and SITE_ROLLING_COUNT are both 0, so nothing would bound the memory "
                "of SITE_DUPEFILTER=rolling; set one of them, or use SITE_DUPEFILTER=memory."
            )
        return cls(limits, now)

    def __len__(self) -> int:
        """How many are kept; some of them may be too old."""
        return len(self._done)

    def __contains__(self, fingerprint: bytes, /) -> bool:
        """Whether it was added and is not forgotten; a hit if so."""
        self._forget_old()
        if fingerprint not in self._done:
            return False
        if self._limits.hits:
            self._hit(fingerprint)
        return True

    def add(self, fingerprint: bytes, /) -> None:
        """Keep it from now on."""
        self._forget_old()
        self._forget(fingerprint)  # its time begins anew
        self._done[fingerprint] = self._now() if self._limits.seconds else 0.0
        if self._limits.count and len(self._done) > self._limits.count:
            self._forget(next(iter(self._done)))

    def _hit(self, fingerprint: bytes) -> None:
        hits = self._hits.get(fingerprint, 0) + 1
        if hits >= self._limits.hits:
            self._forget(fingerprint)
        else:
            self._hits[fingerprint] = hits

    def _forget_old(self) -> None:
        if not self._limits.seconds:
            return
        before = self._now() - self._limits.seconds
        while self._done:
            fingerprint = next(iter(self._done))
            if self._done[fingerprint] > before:
                return
            self._forget(fingerprint)

    def _forget(self, fingerprint: bytes) -> None:
        self._done.pop(fingerprint, None)
        self._hits.pop(fingerprint, None)
