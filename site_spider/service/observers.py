"""What shows a crawl to others: statistics and the socket of `scrapy frontier`."""

from __future__ import annotations

from site_spider import options
from site_spider.contracts.sink import Sink
from site_spider.observe.metrics.measurements import Measurements
from site_spider.observe.server import FrontierServer
from site_spider.observe.statistics import Statistics
from site_spider.observe.watched import Watched
from site_spider.results.delivery import Delivery
from site_spider.service.ending import Ending


class Observers:
    """All of them take their numbers from `observe.snapshot`. None holds up the crawl."""

    def __init__(self, watched: Watched, measurements: Measurements, store: Sink, ending: Ending) -> None:
        settings = watched.crawler.settings
        self._watched = watched
        self._log = measurements.log
        self._statistics = Statistics(
            watched,
            Delivery(store, on_failure=ending.fail),
            options.seconds(settings, "SITE_STATS_INTERVAL_SECONDS", minimum=0.1),
            ending.background,
        )
        has_socket = options.boolean(settings, "SITE_FRONTIER_SOCKET")
        self._server = FrontierServer(watched, measurements.measured) if has_socket else None

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
