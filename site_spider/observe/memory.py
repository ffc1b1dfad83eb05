"""The memory of this process, as Linux says it."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

from scrapy.settings import BaseSettings

_STATM = Path("/proc/self/statm")
_MEGABYTE = 1024 * 1024  # as Scrapy counts MEMUSAGE_*_MB


def rss_bytes() -> int | None:
    """What is resident now; None where there is no /proc."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def memory(settings: BaseSettings) -> dict[str, Any]:
    """Now, at most since the start, and the limits of Scrapy's MEMUSAGE extension, in bytes."""
    return {
        "rss_bytes": rss_bytes(),
        "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "limit_bytes": settings.getint("MEMUSAGE_LIMIT_MB") * _MEGABYTE or None,
        "warning_bytes": settings.getint("MEMUSAGE_WARNING_MB") * _MEGABYTE or None,
    }
