"""Tiers in whole crawls: an urgent seed behind a large backlog, on each seed log."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.http import Response

from site_spider.contracts.seed_log import SeedLog
from site_spider.dead_letter_replay import Replay
from site_spider.seed.topics import CrawlTopics
from site_spider.service import config
from tests.contracts.seed_logs import make_kafka_topic
from tests.in_process import engine
from tests.in_process.engine import crawl, page, settings_for
from tools.deployment.deployment import Deployment, Run, opened, wait_until
from tools.site.handle import Site

BACKLOG = 5_000
TIERS: dict[str, Any] = {"SITE_SEED_TOPIC": "urgent", "SITE_SEED_TOPICS": "urgent:8,bulk:1"}
FEW = 300  # pages of the bulk between the production of the urgent seed and its answer


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.servers)])
def tiers(request: pytest.FixtureRequest) -> dict[str, Any]:
    name = uuid.uuid4().hex[:8]
    urgent, bulk = f"urgent-{name}", f"bulk-{name}"
    settings = {"SITE_SEED_TOPIC": urgent, "SITE_SEED_TOPICS": f"{urgent}:8,{bulk}:1", "SITE_CONSUMER_GROUP": name}
    if request.param == "kafka":
        brokers = request.getfixturevalue("kafka_brokers")
        for topic in (urgent, bulk):
            make_kafka_topic(brokers, topic, 2)
        settings["SITE_KAFKA_BROKERS"] = brokers
    return settings


def produce(log: SeedLog, topic: str, paths: list[str], host: str = "host.test", meta: Any = None) -> None:
    producer = log.producer()
    for path in paths:
        of_path = {"url_id": path, "NotExtract": True} if meta is None else meta
        seed = {"url": f"http://{host}{path}", "meta": of_path}
        producer.send(topic, b"%d" % (len(path) % 7), json.dumps(seed).encode())
    assert producer.flush(300) == 0
    producer.close()


def test_an_urgent_seed_does_not_wait_for_the_backlog_of_a_lower_tier(tmp_path: Path, tiers: dict[str, Any]) -> None:
    log = config.seed_log(settings_for(tmp_path, **tiers))
    urgent, bulk = (tier.split(":")[0] for tier in tiers["SITE_SEED_TOPICS"].split(","))
    paths = [f"/bulk/{number}" for number in range(BACKLOG)]
    produce(log, bulk, paths)
    done, asked, answered = 0, 0, 0

    async def slow(request: Request) -> Response:
        nonlocal done, answered
        await asyncio.sleep(0.01)
        done += 1
        if "urgent" in request.url:
            answered = done
        return page(request)

    engine.ANSWERS.update(dict.fromkeys([*paths, "/urgent"], slow))

    def until(_crawler: Crawler) -> bool:
        nonlocal asked
        if not asked and done > 300:
            asked = done
            produce(log, urgent, ["/urgent"])
        return bool(answered) and done > answered + 200

    found = crawl(tmp_path, [], until=until, **tiers)
    assert "/urgent" in found.documents
    assert answered - asked < FEW, answered - asked
    assert found.seeds["consumed"] < BACKLOG
    log.close()


def test_a_lower_tier_does_not_starve(tmp_path: Path) -> None:
    log = config.seed_log(settings_for(tmp_path))
    counts = {"urgent": 0, "bulk": 0}
    for topic in counts:
        produce(log, topic, [f"/{topic}/{number}" for number in range(3_000)])

    async def slow(request: Request) -> Response:
        await asyncio.sleep(0.05)  # polls are quicker, however busy the machine: seeds of both are always there
        counts[request.url.split("/")[3]] += 1
        return page(request)

    engine.ANSWERS.update({f"/{topic}/{number}": slow for topic in counts for number in range(3_000)})
    crawl(tmp_path, [], until=lambda _crawler: counts["urgent"] > 1_500, **TIERS)
    assert counts["urgent"] / 16 < counts["bulk"] < counts["urgent"] / 4
    log.close()


def test_links_and_dead_letters_belong_to_the_tier_of_their_seed(tmp_path: Path) -> None:
    """What a bulk seed finds is bulk. All tiers share the topic of dead letters, and each goes back to its own."""
    log = config.seed_log(settings_for(tmp_path))
    engine.ANSWERS["/root"] = lambda request: page(request, "<a href=/leaf>x</a>")
    produce(log, "bulk", ["/root"], meta={})
    produce(log, "urgent", ["/other"])
    for topic in ("urgent", "bulk"):
        engine.produce(log, topic, [b"no seed of %s" % topic.encode()])

    def until(crawler: Crawler) -> bool:
        names = "spill/sent", "seeds/dead_lettered"
        return [crawler.stats.get_value(name, 0) for name in names] == [1, 2]

    found = crawl(tmp_path, [], until=until, SITE_LINKS_TO="kafka", **TIERS)
    assert {dict(letter.headers)["origin_topic"] for letter in found.dead_letters} == {b"urgent", b"bulk"}
    replay = Replay(log, "urgent.dead-letters", lambda _message, reason: pytest.fail(reason), CrawlTopics.of(TIERS))
    replay.run()
    for topic, paths in (("bulk", ["/root", "/leaf"]), ("urgent", ["/other"])):
        values = [message.value or b"" for message in log.read(topic)]
        urls = [json.loads(value)["url"] for value in values if value.startswith(b"{")]
        assert urls == [f"http://host.test{path}" for path in paths]
        assert values.count(b"no seed of %s" % topic.encode()) == 2
    log.close()


# --- processes that die ---------------------------------------------------------------------------


def crawler_of(run: Run) -> int:
    found = subprocess.run(
        ["pgrep", "-P", str(run.process.pid), "-f", " crawl "], capture_output=True, text=True, check=False
    )
    return int(found.stdout.split()[0]) if found.stdout.split() else 0


@pytest.mark.nightly
@pytest.mark.servers
def test_results_of_all_tiers_are_stored_exactly_once(kafka_brokers: str, tmp_path: Path) -> None:
    """With their offsets, of both topics in one transaction; a process is killed in between."""
    settings = {
        "SITE_KAFKA_BROKERS": kafka_brokers,
        "SITE_SINKS": "kafka",
        "SITE_KAFKA_EXACTLY_ONCE": "true",
        "SITE_SINK_FLUSH_SECONDS": "0.3",
    }
    for deployment in opened(tmp_path, settings):
        killed_in_between(deployment, kafka_brokers, tmp_path)


def killed_in_between(deployment: Deployment, brokers: str, folder: Path) -> None:
    bulk, results = f"{deployment.topic}-bulk", f"{deployment.topic}-results"
    for topic in (deployment.topic, bulk, results):
        make_kafka_topic(brokers, topic, 2)
    slow, quick = [f"/slow/30/{number}" for number in range(150)], [f"/page/{number}" for number in range(50)]
    with Site(folder / "record.jsonl", hosts=4) as site:
        host = site.url("").removeprefix("http://")
        produce(deployment.log, bulk, slow, host)
        produce(deployment.log, deployment.topic, quick, host)
        tiers = f"{deployment.topic}:8,{bulk}:1"
        run = deployment.start("--until-done", SITE_SEED_TOPICS=tiers, SITE_RESULTS_TOPIC=results)
        wait_until(lambda: len(list(deployment.log.read(results))) > 20, 300, "a part of the crawl")
        os.kill(crawler_of(run), signal.SIGKILL)
        assert run.wait(300) == 0
    found = [json.loads(message.value or b"")["url_id"] for message in deployment.log.read(results)]
    assert sorted(found) == sorted([*slow, *quick])
