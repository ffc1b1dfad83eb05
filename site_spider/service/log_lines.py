"""The lines of a log: which process wrote them, and no more at the start than anybody reads.

crawl_spider.sh numbers its processes, and says in the environment which one this is and how many there are.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Final

from scrapy.settings import BaseSettings

from site_spider.engine import log_record

SLOT: Final = "CRAWL_SPIDER_SLOT"
PROCESSES: Final = "CRAWL_SPIDER_PROCESSES"
_PLACE: Final = "%p"  # in LOG_FILE

# What Scrapy says at every start: it stands in the settings, and is written at DEBUG.
_AT_START: Final = {
    "scrapy.utils.log": "Versions:",
    "scrapy.addons": "Enabled ",
    "scrapy.middleware": "Enabled ",
    "scrapy.crawler": "Overridden settings:",
    "scrapy.extensions.logstats": "Crawled %(pages)d pages",
}


def own_log_lines(settings: BaseSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Put the slot into the name of the log file, and into every line where there are several processes."""
    slot = environ.get(SLOT, "1")
    if _PLACE in (file := str(settings.get("LOG_FILE") or "")):
        settings.set("LOG_FILE", file.replace(_PLACE, slot), priority="cmdline")
    if processes_of(environ) > 1:
        log_record.begin_lines_with(f"[{slot}] ")
        settings.set("LOG_FORMAT", _with_slot(str(settings.get("LOG_FORMAT")), slot), priority="cmdline")


def processes_of(environ: Mapping[str, str] = os.environ) -> int:
    """How many processes crawl_spider.sh runs; 0 without it."""
    given = environ.get(PROCESSES, "")
    return int(given) if given.isdecimal() else 0


def is_first_process(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the one that says what is said once for all of them."""
    return environ.get(SLOT, "1") == "1"


def slot_name(environ: Mapping[str, str] = os.environ) -> str:
    """A name that a process which crawl_spider.sh starts anew has again; empty without it."""
    slot = environ.get(SLOT, "")
    return f"site_spider-{socket.gethostname()}-{slot}" if slot.isdecimal() else ""


def shorten_start(settings: BaseSettings) -> None:
    """Leave out what Scrapy says at every start, unless LOG_LEVEL is DEBUG."""
    level = settings.get("LOG_LEVEL")
    number = level if isinstance(level, int) else logging.getLevelNamesMapping().get(str(level).upper(), 0)
    if number > logging.DEBUG:
        for name, beginning in _AT_START.items():
            logging.getLogger(name).addFilter(_OfStart(beginning))


class _OfStart(logging.Filter):
    """Drops INFO records that begin so; of Scrapy's count of pages only the first, which is always 0."""

    def __init__(self, beginning: str) -> None:
        super().__init__()
        self._beginning = beginning
        self._is_first = True

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.INFO or not str(record.msg).startswith(self._beginning):
            return True
        was_first, self._is_first = self._is_first, False
        return self._beginning.startswith("Crawled") and not was_first


def _with_slot(form: str, slot: str) -> str:
    """Also of a format that makes a JSON object of each line."""
    return f'{{"slot": {slot}, {form[1:]}' if form.startswith("{") else f"[{slot}] {form}"
