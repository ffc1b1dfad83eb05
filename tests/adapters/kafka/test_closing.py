"""A client that closes while an assignment waits for its answer (librdkafka, issue 4884)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from tests.adapters.seed_log_process import Process, process
from tests.contracts.seed_logs import QUICK_KAFKA, Case, poll_until, wait_until

pytestmark = pytest.mark.servers

CLASS = "site_spider.adapters.kafka.seed_log.KafkaSeedLog"
HANG_SECONDS = 300.0


@pytest.fixture(params=["close", "close_late"])
def closing(request: pytest.FixtureRequest, case: Case, kafka_brokers: str) -> Iterator[Process]:
    """A process of its own, since one that hangs cannot be interrupted."""
    case.produce(20)
    settings = {"SITE_KAFKA_BROKERS": kafka_brokers, "SITE_KAFKA_OPTIONS": QUICK_KAFKA}
    with process(request.param, CLASS, settings, case.topic, case.group) as made:
        timer = threading.Timer(HANG_SECONDS, made.popen.kill)
        timer.start()
        yield made
        timer.cancel()


def test_an_assignment_that_nobody_has_answered_does_not_hold_up_the_close(
    closing: Process, case: Case, kafka_brokers: str
) -> None:
    """The partitions go to the next member, which reads them all."""
    closing.wait_for("joined")
    admin = AdminClient({"bootstrap.servers": kafka_brokers})

    def is_assigned() -> bool:
        group = admin.describe_consumer_groups([case.group])[case.group].result()
        return group.state == ConsumerGroupState.STABLE

    wait_until(is_assigned)
    assert closing.popen.stdin is not None
    closing.popen.stdin.write("close\n")
    closing.popen.stdin.flush()
    closing.wait_for("closed")  # once in a few times it would hang, for as long as our patience with it
    member = case.member()
    poll_until([member], lambda: len(member.taken) == 20)
