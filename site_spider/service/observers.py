"""What shows a crawl to others: statistics and the socket of `scrapy frontier`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from site_spider import options
from site_spider.contracts.seed_log import LogName, SeedLog
from site_spider.contracts.sink import Sink, StatisticsStore
from site_spider.errors import ConfigError
from site_spider.observe.frontier_socket import FrontierServer
from site_spider.observe.identity import statistics_id
from site_spider.observe.metrics.readings import Measurements
from site_spider.observe.snapshot import MOMENTS, Watched
from site_spider.observe.statistics import Statistics, StatisticsPlan, StatsTopic
from site_spider.options import SettingsView
from site_spider.results.delivery import Delivery
from site_spider.service.config import KAFKA, STATS_TO, ServiceSettings
from site_spider.service.ending import Ending

_WHEN = "SITE_STATS_WHEN"
_ALWAYS = frozenset({"interval", "close"})  # for the topic: a console shows each process, and its end


class Observers:
    """All of them take their numbers from `observe.snapshot`. None holds up the crawl."""

    def __init__(
        self,
        watched: Watched,
        measurements: Measurements,
        stores: Sequence[StatisticsStore],
        log: SeedLog,
        log_name: LogName,
        config: ServiceSettings,
        ending: Ending,
    ) -> None:
        settings = watched.crawler.settings
        self._watched = watched
        self._log = measurements.log
        # made as a sink is, but by another class method: nothing else differs
        deliveries = [Delivery(cast(Sink, store)) for store in stores]
        plan = statistics_plan(settings, statistics_id(settings, watched.identity))
        topic = StatsTopic(log, config.stats_topic)
        self._statistics = Statistics(watched, deliveries, topic, plan, ending.background)
        has_socket = options.boolean(settings, "SITE_FRONTIER_SOCKET")
        self._server = FrontierServer(watched, measurements.measured, log_name) if has_socket else None

    async def open(self) -> None:
        """Show from now on."""
        self._log.open()
        self._watched.loop_lag.start()
        self._statistics.start()
        if self._server is not None:
            await self._server.open()

    async def close(self) -> None:
        """Write the last statistics, and show nothing any more."""
        if self._server is not None:
            await self._server.close()
        await self._statistics.close()
        self._watched.loop_lag.stop()
        self._log.close()


def statistics_plan(settings: SettingsView, own_id: str) -> StatisticsPlan:
    """What SITE_STATS_* say. Raises ConfigError."""
    moments = frozenset(options.names(settings, _WHEN))
    if not moments or not moments.issubset(MOMENTS):
        raise ConfigError(
            f"{_WHEN} is {settings.get(_WHEN)!r}, but must name one or several of {', '.join(MOMENTS)}."
        )
    has_topic = KAFKA in options.names(settings, STATS_TO)
    return StatisticsPlan(
        own_id,
        options.seconds(settings, "SITE_STATS_INTERVAL_SECONDS", minimum=0.1),
        moments,
        _ALWAYS | moments if has_topic else _ALWAYS,
    )
