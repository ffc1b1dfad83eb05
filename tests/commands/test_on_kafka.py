"""The same commands with Kafka behind them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from site_spider.contracts.seed_log import Message, SeedLog
from site_spider.dead_letter_replay import Replay
from site_spider.seed.topics import CrawlTopics
from site_spider.service import config as parts
from tests.commands.project import Project, ours

pytestmark = pytest.mark.servers


@pytest.fixture
def log(kafka_brokers: str) -> Iterator[SeedLog]:
    found = parts.seed_log(ours(SITE_KAFKA_BROKERS=kafka_brokers))
    yield found
    found.close()


def test_seeds_are_produced_and_their_lag_is_shown(kafka_brokers: str, log: SeedLog, tmp_path: Path) -> None:
    """Nothing is kept in the data folder."""
    topic, project = f"seeds-{uuid.uuid4().hex}", Project(tmp_path / "data")
    variables = {"SITE_KAFKA_BROKERS": kafka_brokers, "SITE_SEED_TOPIC": topic}
    ran = project.scrapy("seed", "-", stdin="http://a.test/\nhttp://b.test/\n", **variables)
    assert (ran.returncode, ran.stdout) == (0, "produced 2, refused 0\n")
    assert {message.key for message in log.read(topic)} == {b"a.test", b"b.test"}
    ran = project.scrapy("progress", "--format", "json", **variables)
    found = json.loads(ran.stdout)
    assert (found["topic"], found["done"], found["lag"]) == (topic, 0, 2)
    assert not project.data.exists()


def test_dead_letters_are_put_back_once(log: SeedLog) -> None:
    """A second replay finds its group at the end."""
    origin = uuid.uuid4().hex
    topic = f"{origin}.dead-letters"
    producer = log.producer()
    sent = [(b"k%d" % number, b"\xff%d" % number) for number in range(20)]
    for key, value in [*sent, (b"t", None)]:
        producer.send(topic, key, value, [("origin_topic", origin.encode())])
    assert producer.flush(300) == 0
    producer.close()
    counts = []
    for _ in range(2):
        replay = Replay(log, topic, _never, CrawlTopics.beside({"SITE_SEED_TOPIC": origin}))
        replay.run()
        counts.append(replay.replayed)
    assert counts == [21, 0]
    found = [(message.key, message.value) for message in log.read(origin)]
    assert sorted(found, key=repr) == sorted([*sent, (b"t", None)], key=repr)


def _never(message: Message, reason: str) -> None:
    pytest.fail(reason)
