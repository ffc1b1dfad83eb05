"""The histograms of one process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from site_spider.histogram import Histogram

LAG_SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BYTES: Final = (100.0, 1e3, 1e4, 5e4, 1e5, 2.5e5, 5e5, 1e6, 2.5e6, 1e7, 1e8)


@dataclass(frozen=True, slots=True)
class Histograms:
    """Those of one process."""

    download_seconds: Histogram = field(default_factory=Histogram)  # a page's attempt, answered or not
    kept_waiting_seconds: Histogram = field(default_factory=Histogram)  # a request whose host is free
    seed_seconds: Histogram = field(default_factory=Histogram)  # from the poll to the completion
    response_bytes: Histogram = field(default_factory=lambda: Histogram(BYTES))  # of results
    loop_lag_seconds: Histogram = field(default_factory=lambda: Histogram(LAG_SECONDS))

    def document(self) -> dict[str, Any]:
        """All of them by name, but for what metrics alone need."""
        return {
            "download_seconds": self.download_seconds.document(),
            "seed_seconds": self.seed_seconds.document(),
            "response_bytes": self.response_bytes.document(),
            "loop_lag_seconds": self.loop_lag_seconds.document(),
        }
