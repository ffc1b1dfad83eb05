"""What can happen to the topics of seeds: a partition more, and an end with a new beginning."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined] # not in its stubs
    AdminClient,
    NewPartitions,
    NewTopic,
)

from site_spider.errors import LogUnavailable
from tools.chaos.acts import Stage
from tools.chaos.feed import Feed
from tools.chaos.plan import Event
from tools.deployment.deployment import Deployment

ANSWER_SECONDS = 5.0


class AddPartition:
    """The seed topic gets one partition more, and then the seeds that were kept back for it."""

    def __init__(
        self,
        admin: AdminClient,
        topics: Sequence[str],
        can_answer: Callable[[], bool],
        feed: Callable[[], None],
    ) -> None:
        self._admin = admin
        self._topics = topics
        self._can_answer = can_answer
        self._feed = feed

    def happen(self, event: Event, stage: Stage) -> str | None:
        """As in Act."""
        if not self._can_answer():
            return None
        topic = self._topics[int(event.victim * len(self._topics))]
        try:
            known = self._admin.list_topics(topic, timeout=ANSWER_SECONDS).topics[topic].partitions
            wanted = len(known) + 1
            self._admin.create_partitions([NewPartitions(topic, wanted)])[topic].result(ANSWER_SECONDS)
        except (KafkaException, TimeoutError):
            return None
        self._feed()
        return f"{topic} has {wanted} partitions"


class RecreateTopic:
    """A topic of seeds is deleted, and later created again. As in storm.Watched and acts.Act.

    What the group has not committed is gone by the operator's hand. As many seeds are produced afterwards.
    """

    waits_for = ""
    name = "seed topic"

    def __init__(
        self,
        admin: AdminClient,
        deployment: Deployment,
        topics: Sequence[str],
        copies: int,
        feed: Feed,
        produce: Callable[[int], None],
        can_answer: Callable[[], bool],
    ) -> None:
        self.outages: list[tuple[float, float]] = []
        self._admin = admin
        self._deployment = deployment
        self._topics = topics
        self._copies = copies
        self._feed = feed
        self._produce = produce
        self._can_answer = can_answer
        self._since: float | None = None

    @property
    def is_away(self) -> bool:
        """As in Watched."""
        return self._since is not None

    def look(self) -> None:
        """As in Watched."""

    def happen(self, event: Event, stage: Stage) -> str | None:
        """As in Act."""
        if self.is_away or not self._can_answer() or not self._feed.pauses.acquire(blocking=False):
            return None
        topic = self._topics[int(event.victim * len(self._topics))]
        try:
            before = self._deployment.log.progress(topic, self._deployment.group)
        except LogUnavailable:
            self._feed.pauses.release()
            return None
        self._since = time.time()
        gone = self._feed.delete(
            topic, {one.partition: one.committed.offset for one in before if one.committed}
        )
        self._delete(topic)

        def create() -> bool:
            if not self._created(topic, len(before)):
                return False
            self.close()
            self._produce(gone)
            stage.say(f"{topic} is there again, and empty")
            return True

        stage.later(event.seconds, create)
        return f"{topic} is deleted with {gone} seeds, for {event.seconds:.1f} s"

    def close(self) -> None:
        """Let the feed go on."""
        if self._since is not None:
            self.outages.append((self._since, time.time()))
            self._since = None
            self._feed.pauses.release()

    def _delete(self, topic: str) -> None:
        """Or have it done by the next attempt to create it."""
        with suppress(KafkaException, TimeoutError):
            self._admin.delete_topics([topic])[topic].result(ANSWER_SECONDS)

    def _created(self, topic: str, partitions: int) -> bool:
        if not self._can_answer():
            return False
        try:
            self._admin.create_topics([NewTopic(topic, partitions, self._copies)])[topic].result(
                ANSWER_SECONDS
            )
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                self._delete(topic)
            return False
        except TimeoutError:
            return False
        return True
