"""What spilling goes by, and who else has to know of a request that leaves."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from scrapy import Request

from site_spider.contracts.seed_log import MessagePlace
from site_spider.ledger.completion import Job


@runtime_checkable
class SpilledPages(Protocol):
    """What a dupefilter has to know of pages that leave."""

    def spilled(self, request: Request, job: Job) -> None:
        """The page of this job goes to a seed topic."""

    def not_spilled(self, request: Request, job: Job) -> None:
        """It stays after all."""


class Highs(Protocol):
    """Who says in the control log of a task where its seeds are."""

    def put(self, task_id: str, place: MessagePlace, then: Callable[[], None]) -> None:
        """A seed of the task is there now; `then` is called when all who have to know it do."""


class ParkedTopic(Protocol):
    """Where requests of a paused task wait."""

    topic: str

    def send(self, task_id: str, origin: str, key: bytes | None, value: bytes) -> Future[Any]:
        """Done when the message is safe there, or in `origin`, its seed topic, if the task goes on."""


@dataclass(frozen=True, slots=True)
class SpillRules:
    """What leaves besides what is too much."""

    open_seconds: float  # of a tree, before its links leave
    tree_pages: int  # that a tree has here, before its links leave
    all_links: bool
