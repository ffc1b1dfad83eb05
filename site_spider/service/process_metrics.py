"""Serves the metrics of this process, where SITE_METRICS_ADDRESS asks for it."""

from __future__ import annotations

import logging

from site_spider.observe.metrics.exporter import Exporter
from site_spider.options import SettingsView
from site_spider.service.metrics_address import MetricsAddress
from site_spider.service.parts import Parts

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 5.0  # for the port: the process before this one may hold it for a moment


class ProcessMetrics:
    """Opened first and closed last, so that /healthz answers all the while."""

    def __init__(self, settings: SettingsView) -> None:
        self._settings = settings
        self._exporter: Exporter | None = None

    async def open(self) -> None:
        """Listen, if that is wanted. Raises ConfigError."""
        address = MetricsAddress.read(self._settings)
        if address is None:
            return
        exporter = Exporter()
        try:
            await exporter.open(*address, _WAIT_SECONDS)
        except OSError as error:
            raise address.refused(error) from error
        self._exporter = exporter
        logger.info("Metrics are served at http://%s/metrics", address)

    def show(self, parts: Parts) -> None:
        """The crawl is wired and takes seeds."""
        if self._exporter is None:
            return
        self._exporter.show(parts.measurements.measured, parts.group.look, lambda: _unready(parts))

    def hide(self) -> None:
        """The crawl ends."""
        if self._exporter is not None:
            self._exporter.hide()

    async def close(self) -> None:
        """Answer nobody any more."""
        if self._exporter is not None:
            await self._exporter.close()
            self._exporter = None


def _unready(parts: Parts) -> str:
    """Why no seed would be taken now; sinks that are away come back by themselves, and so does the log."""
    if not parts.intake.is_member:
        return "the process is not a member of the consumer group yet"
    if parts.intake.is_away:
        return "the seed log does not answer"
    away = [delivery.sink.name for delivery in parts.sinks if not delivery.available]
    return f"sink {away[0]} is away" if away else ""
