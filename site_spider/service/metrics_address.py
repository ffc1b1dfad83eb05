"""Reads SITE_METRICS_ADDRESS: where the metrics of this process are served."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple, Self

from site_spider import options
from site_spider.errors import ConfigError
from site_spider.options import SettingsView
from site_spider.service.log_lines import SLOT

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
