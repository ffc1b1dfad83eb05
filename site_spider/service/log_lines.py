"""The lines of a log: which process wrote them, no more at the start than anybody reads, and one a minute.

crawl_spider.sh numbers its processes, and says in the environment which one this is and how many there are.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.extensions.logstats import LogStats
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings

from site_spider import options, runtime
from site_spider import settings as ours
from site_spider.engine import flow as engine_hooks
from site_spider.engine import scrapy_parts
from site_spider.engine.scrapy_parts import part_of
from site_spider.errors import SiteSpiderError
from site_spider.observe.counters import PageTally
from site_spider.observe.metrics.exporter import GroupWatch
from site_spider.text import plural

logger = logging.getLogger(__name__)

SLOT: Final = "CRAWL_SPIDER_SLOT"
PROCESSES: Final = "CRAWL_SPIDER_PROCESSES"
STARTS: Final = "CRAWL_SPIDER_STARTS"
_PLACE: Final = "%p"  # in LOG_FILE and FEEDS
_ABOVE_ALL: Final = SETTINGS_PRIORITIES["cmdline"] + 1  # Scrapy applies its options again where it starts a crawler
_OF_WHOLE_FILES: Final = ("s3://", "gs://")  # nothing can be added to one

# What Scrapy says at every start: it stands in the settings, and is written at DEBUG.
_AT_START: Final = {
    "scrapy.utils.log": "Versions:",
    "scrapy.addons": "Enabled ",
    "scrapy.middleware": "Enabled ",
    "scrapy.crawler": "Overridden settings:",
}


def own_log_lines(settings: BaseSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Put the slot into the name of the log file, and into every line where there are several processes."""
    slot = environ.get(SLOT, "1")
    if _PLACE in (file := str(settings.get("LOG_FILE") or "")):
        settings.set("LOG_FILE", file.replace(_PLACE, slot), priority="cmdline")
    if processes_of(environ) > 1:
        scrapy_parts.begin_lines_with(f"[{slot}] ")
        form = str(settings.get("LOG_FORMAT"))  # it may make a JSON object of each line
        own = f'{{"slot": {slot}, {form[1:]}' if form.startswith("{") else f"[{slot}] {form}"
        settings.set("LOG_FORMAT", own, priority="cmdline")


def own_feeds(settings: BaseSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Give each process files of its own for Scrapy's feeds: two that write one destroy it.

    A process that is started again adds to what it has written, also where a feed begins anew at a start; in a
    store that takes whole files it writes another one.
    """
    slot, starts, feeds = environ.get(SLOT, "1"), environ.get(STARTS, "1"), settings.getdict("FEEDS")
    own = {}
    for uri, said in ((str(uri), said) for uri, said in feeds.items() if isinstance(said, Mapping)):
        is_whole = starts != "1" and uri.startswith(_OF_WHOLE_FILES)
        added = {"overwrite": False} if starts != "1" and not is_whole else {}
        own[_own_uri(uri, f"{slot}-{starts}" if is_whole else slot)] = {**said, **added}
    if len(own) == len(feeds):  # else Scrapy says what is wrong with one
        settings.set("FEEDS", own, priority=_ABOVE_ALL)


def _own_uri(uri: str, slot: str) -> str:
    folder, slash, name = uri.rpartition("/")
    is_host = folder.endswith(":/")  # of a storage of somebody's own, without a path
    if _PLACE in uri or slot == "1" or uri.startswith("stdout:") or is_host or not name:
        return uri.replace(_PLACE, slot)
    stem, dot, suffix = name.partition(".")
    return f"{folder}{slash}{stem}-{slot}{dot}{suffix}"


def processes_of(environ: Mapping[str, str] = os.environ) -> int:
    """How many processes crawl_spider.sh runs; 0 without it."""
    given = environ.get(PROCESSES, "")
    return int(given) if given.isdecimal() else 0


def slot_name() -> str:
    """A name that a process which crawl_spider.sh starts anew has again; empty without it."""
    slot = os.environ.get(SLOT, "")
    return f"site_spider-{socket.gethostname()}-{slot}" if slot.isdecimal() else ""


def shorten_start(settings: BaseSettings) -> None:
    """Leave out what Scrapy says at every start, unless LOG_LEVEL is DEBUG."""
    if not scrapy_parts.writes_debug(settings):
        for name, beginning in _AT_START.items():
            logging.getLogger(name).addFilter(partial(_is_wanted, beginning))


class RateLine(LogStats):
    """Scrapy's line each LOGSTATS_INTERVAL, with the lag of the group behind it; none at the start."""

    _crawler: Crawler
    _saying: runtime.Thread | None = None
    _has_begun = False
    _items_before = 0

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        line = super().from_crawler(crawler)
        line._crawler = crawler
        return line

    def log(self, spider: Spider) -> None:
        """As Scrapy's; the lag is asked for in a thread."""
        if not self._has_begun:
            self._has_begun = True
            return
        group = part_of(self._crawler, GroupWatch)
        if group is None:  # the spider takes no seeds
            super().log(spider)
            return
        self.calculate_stats()  # also where the line before waits for the lag: each has the rate of one interval
        if self._saying is None or not self._saying.is_alive():
            said = (self.pages, self.prate, self.items, self.irate)
            self._saying = runtime.Thread(target=self._say, args=(group, *said), name="site-rate-line", daemon=True)
            with suppress(RuntimeError):  # for want of threads
                self._saying.start()

    def calculate_stats(self) -> None:
        """As Scrapy's, whose items are also the results of pages."""
        super().calculate_stats()
        tally = part_of(self._crawler, PageTally)
        if tally is not None:
            self.items, self.irate = tally.items, (tally.items - self._items_before) * self.multiplier
            self._items_before = tally.items

    def _say(self, group: GroupWatch, *numbers: Any) -> None:
        try:
            lag = f"{group.lag():,}"
        except SiteSpiderError:
            lag = "not known"
        except Exception:  # noqa: BLE001 - the log was closed meanwhile, say; a line never ends a crawl
            return
        logger.info("Crawled %d pages (at %d pages/min), scraped %d items (at %d items/min), lag %s", *numbers, lag)


def _is_wanted(beginning: str, record: logging.LogRecord) -> bool:
    """Whether it is no INFO record that begins so."""
    return record.levelno != logging.INFO or not str(record.msg).startswith(beginning)


# --- announcement ----------------------------------------------------------------------------------------
# What is said at the start of a crawl: where results go, and what has no effect though it was asked for.

_PLACES: Final = {
    "local": "SITE_DATA_DIR",
    "elasticsearch": "SITE_RESULTS_INDEX",
    "hbase": "SITE_HBASE_TABLE",
    "kafka": "SITE_RESULTS_TOPIC",
    "warc": "SITE_WARC_DIR",
}
_WITHOUT_EFFECT: Final = ("JOBDIR", "SCHEDULER_PRIORITY_QUEUE", "SCHEDULER_MEMORY_QUEUE", "SCHEDULER_DISK_QUEUE")
_TLS: Final = "DOWNLOADER_CLIENTCONTEXTFACTORY"
_BEGINNINGS: Final = ("start_urls", "start_requests", "sitemap_urls")  # of a spider


def where_results_go(settings: BaseSettings) -> str:
    """Each sink, and which index, table, topic or folder of it."""
    names = options.names(settings, "SITE_SINKS")
    places = {name: settings.get(_PLACES[name]) for name in names if name in _PLACES}
    return ", ".join(f"{name} ({places[name]})" if places.get(name) else name for name in names)


def say_what_has_no_effect(settings: BaseSettings) -> None:
    """One line for settings of Scrapy that seeds do not go by."""
    usual = SETTINGS_PRIORITIES["default"]
    given = [name for name in _WITHOUT_EFFECT if (settings.getpriority(name) or 0) > usual and settings.get(name)]
    if given:
        _say(
            f"{', '.join(given)}: no effect on seeds, which wait in queues of this project and are kept by the seed "
            "log. Remove it from the settings."
        )
    is_ours = settings.getdict("DOWNLOAD_HANDLERS").get("https") == ours.DOWNLOAD_HANDLERS["https"]
    if is_ours and (settings.getpriority(_TLS) or 0) > usual:
        _say(
            f"{_TLS}: no effect on the download handler of this project, which goes by DOWNLOAD_TLS_MIN_VERSION and "
            "the like. If it is needed, name a handler of Scrapy's in DOWNLOAD_HANDLERS."
        )


def say_starts_without_seeds(spider: Spider) -> None:
    """One line for what a spider would begin with in Scrapy, and has no effect here or less than there."""
    name = spider.name
    if not _begins_with_seeds(type(spider)):
        _say(
            f"start of spider {name}: each process fetches what it yields at each start, beside the seeds and without "
            f"their promise; items that it yields are dropped. Produce seeds instead: scrapy seed --spider {name}"
        )
    elif given := [name for name in _BEGINNINGS if getattr(spider, name, None)]:
        _say(
            f"{', '.join(given)} of spider {name}: no effect, as it begins with seeds alone. Produce these URLs with "
            f"`scrapy seed --spider {name}`, and remove {'it' if len(given) == 1 else 'them'} from the spider."
        )


def say_who_waits_for_idle(crawler: Crawler) -> None:
    """One line for what would give requests, or keep the crawl, when Scrapy has none left."""
    if found := engine_hooks.receivers(crawler, signals.spider_idle):
        _say(
            f"{', '.join(found)}: not called, as spider_idle is not sent: a crawl waits for seeds. Produce seeds "
            "instead (site_spider.SeedProducer), and see SITE_IDLE_CLOSE_SECONDS."
        )


def _begins_with_seeds(spider: type[Spider]) -> bool:
    """Whether `start` is that of the class which takes seeds, and nobody's own."""
    owner = next(kind for kind in spider.__mro__ if "start" in vars(kind))
    return "takes_seeds" in vars(owner)


def say_idle_processes(topics: Sequence[str], partitions: int) -> None:
    """One line where crawl_spider.sh runs more processes than the topic has partitions."""
    processes = processes_of()
    if 0 < partitions < processes:
        have = f"Topic {topics[0]} has" if len(topics) == 1 else f"Topics {', '.join(topics)} have"
        _say(
            f"{have} {plural(partitions, 'partition')} for {processes} processes, and a partition belongs to one "
            f"process: {processes - partitions} of them have nothing to do. Add partitions to the topic, or start "
            "fewer processes with -n."
        )


def _say(line: str) -> None:
    """By the first process for all of them."""
    if os.environ.get(SLOT, "1") == "1":
        logger.warning("%s", line)
