"""What is said at the start of a crawl: where results go, and what has no effect though it was asked for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from scrapy import Spider
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings

from site_spider import options
from site_spider.service.log_lines import is_first_process, processes_of

logger = logging.getLogger(__name__)

_PLACES: Final = {
    "local": "SITE_DATA_DIR",
    "elasticsearch": "SITE_RESULTS_INDEX",
    "hbase": "SITE_HBASE_TABLE",
    "kafka": "SITE_RESULTS_TOPIC",
}
_WITHOUT_EFFECT: Final = (
    "JOBDIR",
    "SCHEDULER_PRIORITY_QUEUE",
    "SCHEDULER_MEMORY_QUEUE",
    "SCHEDULER_DISK_QUEUE",
)
_STARTS: Final = ("start_urls", "start_requests", "sitemap_urls")  # of a spider


def where_results_go(settings: BaseSettings) -> str:
    """Each sink, and which index, table, topic or folder of it."""
    names = options.names(settings, "SITE_SINKS")
    return ", ".join(f"{name} ({settings.get(_PLACES[name])})" if name in _PLACES else name for name in names)


def say_what_has_no_effect(settings: BaseSettings) -> None:
    """One line for settings of Scrapy that seeds do not go by."""
    given = [
        name
        for name in _WITHOUT_EFFECT
        if (settings.getpriority(name) or 0) > SETTINGS_PRIORITIES["default"] and settings.get(name)
    ]
    if given and is_first_process():
        logger.warning(
            "%s: no effect on seeds, which wait in queues of this project and are kept by the seed log. "
            "Remove it from the settings.",
            ", ".join(given),
        )


def say_starts_without_seeds(spider: Spider) -> None:
    """One line for what a spider would begin with in Scrapy, and has no effect here or less than there."""
    if not is_first_process():
        return
    if not _begins_with_seeds(type(spider)):
        logger.warning(
            "start of spider %s: each process fetches what it yields at each start, beside the seeds and "
            "without their promise; items that it yields are dropped. Produce seeds instead: "
            "scrapy seed --spider %s",
            spider.name,
            spider.name,
        )
    elif given := [name for name in _STARTS if getattr(spider, name, None)]:
        logger.warning(
            "%s of spider %s: no effect, as it begins with seeds alone. Produce these URLs with "
            "`scrapy seed --spider %s`, and remove %s from the spider.",
            ", ".join(given),
            spider.name,
            spider.name,
            "it" if len(given) == 1 else "them",
        )


def _begins_with_seeds(spider: type[Spider]) -> bool:
    """Whether `start` is that of the class which takes seeds, and nobody's own."""
    owner = next(kind for kind in spider.__mro__ if "start" in vars(kind))
    return "takes_seeds" in vars(owner)


def say_idle_processes(topics: Sequence[str], partitions: int) -> None:
    """One line where crawl_spider.sh runs more processes than the topic has partitions."""
    processes = processes_of()
    if 0 < partitions < processes and is_first_process():
        logger.warning(
            "%s %s for %d processes, and a partition belongs to one process: %d of them have "
            "nothing to do. Add partitions to the topic, or start fewer processes with -n.",
            f"Topic {topics[0]} has" if len(topics) == 1 else f"Topics {', '.join(topics)} have",
            "1 partition" if partitions == 1 else f"{partitions} partitions",
            processes,
            processes - partitions,
        )
