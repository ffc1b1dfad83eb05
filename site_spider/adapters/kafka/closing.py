"""Closes the client of a member without hanging in it.

Theory of operation. An assignment that arrives while the client closes is answered from within its
`close`. That answer ends the membership at once. The answer to the revocation behind it may then wait for
ever, with Python's lock held, so that no thread of the process goes on (librdkafka, issue 4884; seen in
one of four closes in a rebalance). So what waits to be answered is answered first. Should an assignment
arrive in the moment between, the thread that closes stays in it, with the lock released: the client is left
as a killed process leaves its own.
"""

from __future__ import annotations

import logging

from confluent_kafka import Consumer, KafkaException

from site_spider import runtime

logger = logging.getLogger(__name__)

_BATCH = 10_000
_ANSWER_SECONDS = 1.0  # for what waits in the client
_PATIENCE_SECONDS = 30.0  # for a close that servers hold up


class ClientClosing:
    """Of one client, once. Its callbacks ask `has_begun`, and call `stay_if_late` before they answer."""

    def __init__(self, client: Consumer) -> None:
        self._client = client
        self._over = runtime.Event()
        self._thread: int | None = None
        self.has_begun = False

    def run(self) -> None:
        """Returns when the client is closed, is left, or has not closed in 30 s; at once when repeated."""
        if self.has_begun:
            return
        self.has_begun = True
        self._answer_rebalances()
        runtime.Thread(target=self._close, name="site-kafka-closing", daemon=True).start()
        if not self._over.wait(_PATIENCE_SECONDS):
            logger.warning("A Kafka client did not close within %.0f s; going on.", _PATIENCE_SECONDS)

    def stay_if_late(self) -> None:
        """Does not return when the client is within its own close: to be called for an assignment."""
        if runtime.get_ident() == self._thread:
            logger.warning("An assignment arrived while a Kafka client closed; it is left without an answer.")
            self._over.set()
            runtime.Event().wait()

    def _answer_rebalances(self) -> None:
        deadline = runtime.monotonic() + _ANSWER_SECONDS
        try:
            while self._client.consume(_BATCH, 0) and runtime.monotonic() < deadline:
                pass
        except KafkaException as error:
            logger.info("A Kafka client that closes says: %s", error)

    def _close(self) -> None:
        self._thread = runtime.get_ident()
        try:
            self._client.close()
        except KafkaException as error:
            logger.warning("A Kafka client closed with: %s", error)
        finally:
            self._over.set()
