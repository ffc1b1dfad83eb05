"""Serves the metrics of this process, where SITE_METRICS_ADDRESS asks for it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import NamedTuple, Self

from site_spider import options
from site_spider.errors import ConfigError
from site_spider.observe.metrics.exporter import Exporter
from site_spider.options import SettingsView
from site_spider.service.log_lines import SLOT
from site_spider.service.parts import Parts

# --- metrics address -------------------------------------------------------------------------------------
# Reads SITE_METRICS_ADDRESS: where the metrics of this process are served.


NAME = "SITE_METRICS_ADDRESS"
_HOST_AND_PORT = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})"
)
_HIGHEST_PORT = 65_535


class MetricsAddress(NamedTuple):
    """Where this process listens."""

    host: str
    port: int

    @classmethod
    def read(cls, settings: SettingsView, environ: Mapping[str, str] = os.environ) -> Self | None:
        """None where it is empty. Process N of crawl_spider.sh has the N-th port. Raises ConfigError."""
        value = options.text(settings, NAME)
        if not value:
            return None
        found = _HOST_AND_PORT.fullmatch(value)
        if found is None:
            raise ConfigError(f"{NAME} is {value!r}, but must be host:port, such as 127.0.0.1:9410.")
        slot = environ.get(SLOT, "1")
        first = int(found["port"])
        port = first + (int(slot) - 1 if slot.isdecimal() and slot != "0" else 0)
        if first == 0 or port > _HIGHEST_PORT:
            raise ConfigError(
                f"{NAME} is {value!r}, which gives process {slot} port {port}, but a port is from 1 to "
                f"{_HIGHEST_PORT}. Name another one."
            )
        return cls(found["six"] or found["host"], port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def refused(self, error: OSError) -> ConfigError:
        """What is said when nobody can listen there."""
        return ConfigError(
            f"{NAME}: {self.host} port {self.port} cannot be listened on: {error.strerror or error}. End who "
            "listens there, or name another address. Process N of crawl_spider.sh has the N-th port."
        )


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
