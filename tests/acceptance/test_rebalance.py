"""What happens to topics and groups while a crawl runs, over real Kafka."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.adapters.kafka.member_name import MemberSlot
from tests.real_servers import make_topic
from tools.deployment.deployment import Deployment, wait_until
from tools.site.handle import Site

pytestmark = pytest.mark.servers
ON_KAFKA = True
HOSTS = 4


def test_partitions_that_are_added_are_shared_and_nothing_is_lost(
    deployment: Deployment, site: Site, kafka_brokers: str
) -> None:
    """One of two members leaves, the other finishes; neither ends before all is produced."""
    make_topic(kafka_brokers, deployment.topic, 2)
    paths = [f"/slow/50/{number}" for number in range(300)]
    deployment.produce_pages(site.url, paths[:100])
    leaving, staying = deployment.start("-c", "4"), deployment.start("-c", "4")
    admin = AdminClient({"bootstrap.servers": kafka_brokers})
    admin.create_partitions([NewPartitions(deployment.topic, 4)])[deployment.topic].result()
    deployment.produce_pages(site.url, paths[100:])
    wait_until(lambda: len(site.entries()) > 150, 300, "the crawl under way")
    leaving.terminate()
    assert leaving.wait(300) == 0
    wait_until(deployment.is_done, 300, "the end of the lag")
    staying.terminate()
    assert staying.wait(300) == 0
    assert set(deployment.documents()) == set(paths)
    assert deployment.lag() == 0


@pytest.mark.nightly
def test_a_crawler_that_was_fenced_goes_on(
    deployment: Deployment, site: Site, kafka_brokers: str, tmp_path: Path
) -> None:
    """Another member takes its name and its partitions, and leaves: the same process has them again."""
    make_topic(kafka_brokers, deployment.topic, 4)
    paths = [f"/slow/50/{number}" for number in range(200)]
    deployment.produce_pages(site.url, paths)
    run = deployment.start("-c", "4", XDG_RUNTIME_DIR=str(tmp_path))
    wait_until(lambda: len(site.entries()) > 50, 300, "the crawl under way")
    slot = MemberSlot.claim(deployment.group, tmp_path / "site_spider")
    assert slot.instance_id.endswith("-1")
    taken_name = slot.instance_id.removesuffix("1") + "0"
    slot.release()
    config = KafkaConfig(kafka_brokers).member(deployment.group, taken_name, lambda _error: None)
    rival, assigned = Consumer(config), list[TopicPartition]()
    rival.subscribe([deployment.topic], on_assign=lambda _client, raw: assigned.extend(raw))
    wait_until(lambda: [rival.poll(0.1), assigned][1], 300, "an assignment of the rival")
    rival.close()
    wait_until(deployment.is_done, 300, "the end of the lag")
    assert set(deployment.documents()) == set(paths)
    assert run.text().count("Joining again") == 1
    run.terminate()
    assert run.wait(300) == 0
    assert "starting again" not in run.text()


@pytest.mark.nightly
def test_a_page_slower_than_the_poll_interval_costs_no_membership(deployment: Deployment, site: Site) -> None:
    """The thread that polls does not wait for pages."""
    options = {"session.timeout.ms": 6000, "max.poll.interval.ms": 6000}
    paths = ["/slow/9000/page"]
    deployment.produce_pages(site.url, paths)
    run = deployment.start("--until-done", SITE_KAFKA_OPTIONS=json.dumps(options))
    assert run.wait(300) == 0
    assert set(deployment.documents()) == set(paths)
    assert run.text().count("Assigned: ") == 1
    assert len(site.entries()) == 1
