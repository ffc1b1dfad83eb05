"""Hands the rest of a long tree back to the seed topic, so that the watermark moves.

A seed whose tree stays open longer than SITE_SEED_MAX_OPEN_SECONDS is overdue: its links that
wait, and those found from then on, are sent to the seed topic as seeds of their own. Each is
durable there before it leaves the tree. What is downloading ends here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future

from scrapy import Request

from site_spider.core.seed import parse_seed
from site_spider.core.seed_log import Producer
from site_spider.core.url import host_of
from site_spider.crawl import lineage
from site_spider.crawl.completion import Completion
from site_spider.crawl.lineage import Job, Root
from site_spider.crawl.waiting_room import WaitingRoom
from site_spider.errors import SeedError

logger = logging.getLogger(__name__)

Send = Callable[[Job, bytes | None, bytes], Future[None]]  # of a tree's link, key and value


class Spill:
    """Finds overdue seeds and sends their links away. On the event loop's thread only."""

    def __init__(
        self,
        send: Send,
        topic: str,
        completion: Completion,
        room: WaitingRoom,
        limit_seconds: float,
    ) -> None:
        self.is_crowded: Callable[[], bool] = lambda: False  # set where results are kept: no tree may go on
        self._send = send
        self._topic = topic
        self._completion = completion
        self._room = room
        self._limit_seconds = limit_seconds
        self._loop = asyncio.get_running_loop()
        self.links = 0  # spilled and durable
        self.under_way = 0

    def look(self) -> None:
        """Spill what waits for seeds that have become overdue; to be called now and then."""
        before = time.monotonic() - self._limit_seconds
        crowded = self.is_crowded()
        roots = [root for root in self._completion.roots() if not root.is_overdue]
        late = [root for root in roots if crowded or root.began < before]
        if not late:
            return
        for root in late:
            root.is_overdue = True
            if not crowded:
                logger.info(
                    "The tree of %s is open for more than %.0f s; its links go back to %s as seeds",
                    root.url,
                    self._limit_seconds,
                    self._topic,
                )
        if crowded:
            logger.info(
                "%d open trees keep too many results; their links go back to %s as seeds",
                len(late),
                self._topic,
            )
        for request in self._room.remove_requests(self._is_overdue):
            if not self.takes(request):
                self._room.put_request(request)

    def takes(self, request: Request) -> bool:
        """Whether an accepted request is spilled rather than queued."""
        job = lineage.job_of(request)
        if job is None or not self._is_overdue(request) or (value := _as_seed(request, job)) is None:
            return False
        self.under_way += 1
        future = self._send(job, host_of(request.url).encode() or None, value)
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._sent, done, request, job))
        return True

    def _is_overdue(self, request: Request) -> bool:
        job = lineage.job_of(request)
        return job is not None and job is not job.root and job.root.is_overdue and job.entry.live

    def _sent(self, future: Future[None], request: Request, job: Job) -> None:
        self.under_way -= 1
        error = future.exception()
        if error is not None:
            logger.warning("A link could not be spilled and is crawled here: %s (%s)", request.url, error)
            self._room.put_request(request)
            return
        self.links += 1
        job.written = True  # by whoever takes the new seed
        self._completion.ended(request)


def send_seed(producer: Producer, topic: str, _job: Job, key: bytes | None, value: bytes) -> Future[None]:
    """A `Send` that does not wait for the tree."""
    return producer.send(topic, key, value)


def _as_seed(request: Request, job: Job) -> bytes | None:
    """The message for a link; None for a request that a seed cannot express."""
    root: Root = job.root
    if request.callback is not None or request.errback is not None or request.cb_kwargs or request.cookies:
        return None
    fields = {
        "url": request.url,
        "method": request.method,
        "headers": {name.decode("latin-1"): _texts(values) for name, values in request.headers.items()},
        "dont_filter": request.dont_filter,
        "meta": {
            "url_id": job.url_id,
            "depth": job.depth,
            "parent_url_id": None if job.parent is None else job.parent.url_id,
            "seed_url_id": root.seed.seed_url_id or root.url_id,
            "task_id": root.seed.task_id,
        },
    }
    value = json.dumps(fields).encode()
    try:
        parse_seed(value)
    except SeedError:
        return None
    return None if request.body else value


def _texts(values: list[bytes]) -> list[str]:
    return [value.decode("latin-1") for value in values]
