"""Where results leave a crawl: one delivery a sink, and transactions where they are asked for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from site_spider.contracts.seed_log import Consumer, Listener, Producer, SeedLog
from site_spider.contracts.sink import Sink
from site_spider.frontier.spill.spill import Send
from site_spider.intake.commits import Commits, OffsetCommits
from site_spider.ledger.completion import Completion
from site_spider.results.delivery import Delivery
from site_spider.results.exactly_once.keeper import ExactlyOnce
from site_spider.results.results import Results
from site_spider.service.service_settings import ServiceSettings

logger = logging.getLogger(__name__)


class Outlets:
    """The deliveries of a crawl, and the keeper of results that go with the offsets of their seeds."""

    def __init__(
        self,
        deliveries: list[Delivery],
        config: ServiceSettings,
        completion: Completion,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._on_failure = on_failure
        self._deliveries = deliveries
        self._config = config
        self._together: ExactlyOnce | None = None
        self.commits: OffsetCommits | ExactlyOnce = OffsetCommits(completion.positions, completion.committed)
        if config.exactly_once:
            self.commits = self._together = ExactlyOnce(completion, config.batch, config.backlog_bytes)

    async def open(self, sinks: Sequence[Sink], on_change: Callable[[], None]) -> None:
        """Open the sinks, waiting for those that are away. Raises SinkUnavailable, ConfigError."""
        for sink in sinks:
            delivery = Delivery(
                sink, limits=self._config.batch, on_change=on_change, on_failure=self._on_failure
            )
            await delivery.open(self._config.startup_wait_seconds)
            self._deliveries.append(delivery)

    def join(self, results: Results, is_urgent: Callable[[], bool], on_change: Callable[[], None]) -> None:
        """Let results take the way that the settings ask for."""
        results.is_urgent = is_urgent  # few are in flight: the next wait for these
        if self._together is not None:
            results.keep = self._together.keep
            self._together.is_urgent = is_urgent
            self._together.give_up = results.give_up
            self._together.on_change = on_change

    def spill_by(self, producer: Producer) -> Send:
        """What hands requests to the seed topic: at once, or together with their tree."""
        if self._together is not None:
            return self._together.spill
        return lambda _job, key, value: producer.send(self._config.seed_topic, key, value)

    def consumer(self, log: SeedLog, listener: Listener) -> Consumer:
        """A member of the group that commits as the settings ask for. Raises ConfigError."""
        topic, group = self._config.seed_topic, self._config.consumer_group
        if self._together is None:
            return log.consumer(topic, group, listener)
        return log.transactional_consumer(topic, group, listener)

    @property
    def commits_of_intake(self) -> Commits:
        """What the intake's thread commits by."""
        return self.commits if isinstance(self.commits, OffsetCommits) else self.commits.commits

    def take_more(self) -> bool:
        """False while a sink is away, or too much waits for it. Any thread may ask."""
        limit = self._config.backlog_bytes
        if self._together is not None and not (
            self._together.available and self._together.backlog_bytes < limit
        ):
            return False
        return all(delivery.available and delivery.backlog_bytes < limit for delivery in self._deliveries)

    def flush(self) -> None:
        """Send the results that wait for their batch to fill."""
        for delivery in self._deliveries:
            delivery.flush()

    def is_awaited(self) -> bool:
        """Whether a sink that is not away has still to answer for results."""
        return any(delivery.available and delivery.backlog_count for delivery in self._deliveries)

    def has_taken_most(self) -> bool:
        """Whether few results wait for a sink, so that a large one may be made."""
        return sum(delivery.backlog_bytes for delivery in self._deliveries) < self._config.backlog_bytes // 4

    def is_crowded(self) -> bool:
        """Whether seeds that are not complete hold so many results that no other may begin."""
        return self._together is not None and self._together.is_crowded

    async def close(self, seconds: float) -> None:
        """Let every sink take what waits; what it does not take in time is replayed."""
        deadline = asyncio.get_running_loop().time() + seconds
        left = sum(await asyncio.gather(*(delivery.close(seconds) for delivery in self._deliveries)))
        if left:
            logger.warning("%d results were not taken by their sinks; their seeds will be replayed", left)
        if self._together is not None:
            left = await self._together.close(max(1.0, deadline - asyncio.get_running_loop().time()))
            if left:
                logger.warning("%d seeds could not be committed with their results; they are replayed", left)
