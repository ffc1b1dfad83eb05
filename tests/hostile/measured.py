"""`scrapy` with a probe for the event loop and the memory: `python -m tests.hostile.measured crawl ...`.

The probe's figures are written as JSON to the file that HOSTILE_FIGURES names.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from pathlib import Path
from typing import Self

from scrapy import signals
from scrapy.cmdline import execute
from scrapy.crawler import Crawler

from site_spider import settings

_EVERY_SECONDS = 0.005
_WRITE_SECONDS = 0.5


class Probe:
    """The most CPU time of the loop's thread between two turns. That of other processes does not count.

    A timer is due in each turn that ends 5 ms or more after the one before, so a figure is too high by
    5 ms of CPU at the most.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._file = Path(os.environ["HOSTILE_FIGURES"])
        self._longest = 0.0
        self._written_at = 0.0
        self._cpu = 0.0
        crawler.signals.connect(self._begin, signal=signals.spider_opened)
        crawler.signals.connect(self._write, signal=signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._cpu = time.thread_time()
        self._look()

    def _look(self) -> None:
        cpu = time.thread_time()
        self._longest = max(self._longest, cpu - self._cpu)
        if time.monotonic() - self._written_at > _WRITE_SECONDS:
            self._write()
        self._cpu = time.thread_time()  # its own writing is not counted
        self._loop.call_later(_EVERY_SECONDS, self._look)

    def _write(self) -> None:
        self._written_at = time.monotonic()
        figures = {
            "loop": type(self._loop).__module__,
            "longest_turn_seconds": self._longest,
            "peak_mb": _peak_kb() / 1024,
        }
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(figures))
        new.replace(self._file)


def _peak_kb() -> int:
    """Of this program: ru_maxrss begins with the peak of the process that started it."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])


if __name__ == "__main__":
    settings.EXTENSIONS["tests.hostile.measured.Probe"] = 0
    execute()
