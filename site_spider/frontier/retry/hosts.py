"""The interface by which answers report an overloaded host."""

from __future__ import annotations

from abc import ABC, abstractmethod

from scrapy import Request


class HostAnswers(ABC):
    """Told of answers, so that a host that is overloaded is left alone."""

    @abstractmethod
    def host_overloaded(self, request: Request, asked_seconds: float) -> None:
        """The host has no room for this request: start nothing of it for a while."""

    @abstractmethod
    def host_answered(self, request: Request) -> None:
        """The host has answered this request well."""
