"""Topics of a test, and an address where nobody listens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from site_spider.adapters.kafka.seed_log import KafkaSeedLog
from site_spider.contracts.seed_log import Producer
from tests.contracts.seed_logs import Case, kafka_case, kafka_producer, make_kafka_topic

__all__ = ["kafka_producer"]


@pytest.fixture
def lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lock files for this test's members alone."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def case(kafka_producer: Producer, kafka_brokers: str, lock_folder: None) -> Iterator[Case]:
    """An empty topic."""
    with kafka_case(kafka_producer, kafka_brokers) as made:
        yield made


@pytest.fixture
def one_partition(case: Case, kafka_brokers: str) -> Case:
    make_kafka_topic(kafka_brokers, case.topic, 1)
    return case


@pytest.fixture
def nobody() -> str:
    return "127.0.0.1:9"  # the discard port: nobody listens


def of(brokers: str, **options: object) -> KafkaSeedLog:
    return KafkaSeedLog.from_settings({"SITE_KAFKA_BROKERS": brokers, "SITE_KAFKA_OPTIONS": options})
