"""This project: seeds from Kafka, `crawl_spider.sh`, results to a sink that acknowledges them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # not in its stubs

from site_spider.errors import SiteSpiderError
from site_spider.service import config as parts
from tools.chaos.crew import Process, is_crawler
from tools.deployment.deployment import SCRIPT, Deployment
from tools.race.contestant import CONCURRENCY, PER_HOST, Contestant, Heat, HeatFailed, Record

PARTITIONS = 16
PRODUCED_TOGETHER = 100_000  # seeds, of which the last is acknowledged before there are more


class Ours(Contestant):
    """Results go to a Kafka topic, which notes when the broker has them."""

    name = "site_spider"
    writes = "Kafka topic, acknowledged"
    sink = "kafka"
    processes = 1

    def __init__(self, heat: Heat) -> None:
        super().__init__(heat)
        self._deployment = Deployment(heat.folder, dict(self.variables))
        self._results = f"{self._deployment.topic}.results"
        self._deployment.settings |= {
            "SITE_SINKS": self.sink,
            "SITE_RESULTS_TOPIC": self._results,
            "SITE_STATS_INTERVAL_SECONDS": "10",
            "CONCURRENT_REQUESTS_PER_DOMAIN": str(PER_HOST),
            "DEPTH_LIMIT": "0",
        }
        self._consumer = Consumer(
            {
                "bootstrap.servers": self.variables["SITE_KAFKA_BROKERS"],
                "group.id": f"{self._deployment.group}.bench",
                "enable.auto.commit": False,
            }
        )

    def prepare(self) -> None:
        self.make_topics()
        self.produce()

    def make_topics(self) -> None:
        """Of the results' topic the broker notes when it has a record: the time of acknowledgement."""
        admin = AdminClient({"bootstrap.servers": self.variables["SITE_KAFKA_BROKERS"]})
        results_options = {"message.timestamp.type": "LogAppendTime"}
        made = admin.create_topics(
            [
                NewTopic(self._deployment.topic, PARTITIONS, 1),
                NewTopic(self._results, PARTITIONS, 1, config=results_options),
            ]
        )
        for topic in made.values():
            topic.result()

    def produce(self) -> None:
        """Put all seeds on the topic, as a producer of seeds would: keyed by host."""
        seeds = self.heat.seeds
        for first in range(0, len(seeds), PRODUCED_TOGETHER):
            together = seeds[first : first + PRODUCED_TOGETHER]
            self._deployment.produce([self._message(url) for url in together])

    def _message(self, url: str) -> tuple[bytes, bytes]:
        meta = {} if self.heat.workload.extracts else {"NotExtract": True}
        return (urlsplit(url).hostname or "").encode(), json.dumps({"url": url, "meta": meta}).encode()

    def command(self) -> list[str]:
        options = ["-n", str(self.processes), "-c", str(CONCURRENCY), "--until-done"]
        return [str(SCRIPT), *options]

    def environment(self) -> dict[str, str]:
        return super().environment() | self._deployment.settings

    def counts(self, process: Process) -> bool:
        """The crawlers. The script and its watcher cost the same for one page and for a million."""
        return is_crawler(process)

    def recorded(self) -> int:
        marks = [
            self._consumer.get_watermark_offsets(TopicPartition(self._results, number), timeout=10)
            for number in range(PARTITIONS)
        ]
        return sum(end - first for first, end in marks)

    def records(self) -> Iterator[Record]:
        left = self.recorded()
        self._consumer.assign([TopicPartition(self._results, number, 0) for number in range(PARTITIONS)])
        while left:
            for message in self._consumer.consume(min(left, 500), timeout=10):
                left -= 1
                found = json.loads(message.value() or b"")
                _, milliseconds = message.timestamp()
                if found["body"] is None:
                    raise RuntimeError(f"{found['url']} has no page: {found['description']}")
                yield Record(found["url"], found["status"], len(found["body"]), milliseconds / 1000)

    def close(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.variables["SITE_KAFKA_BROKERS"]})
        for topic in admin.delete_topics([self._deployment.topic, self._results]).values():
            topic.result()
        self._consumer.close()
        self._deployment.close()


class Pair(Ours):
    """Two members of a group. They have their partitions before there are seeds: nothing is done twice."""

    name = "site_spider -n 2"
    stops_itself = False
    processes = 2
    _SETTLED_SECONDS = 3.0

    def prepare(self) -> None:
        self.make_topics()

    def command(self) -> list[str]:
        return [str(SCRIPT), "-n", str(self.processes), "-c", str(CONCURRENCY)]

    def started(self, log: Path, process: subprocess.Popen[bytes]) -> None:
        """Produce the seeds when each member has said what it owns."""
        deadline = time.monotonic() + 60
        while log.read_text(errors="replace").count("Assigned: ") < self.processes:
            if process.poll() is not None or time.monotonic() > deadline:
                raise HeatFailed(f"no {self.processes} members: {log.read_text(errors='replace')[-1500:]}")
            time.sleep(0.1)
        time.sleep(self._SETTLED_SECONDS)
        self.produce()


class Single(Pair):
    """One member, treated in the same way."""

    name = "site_spider -n 1"
    processes = 1


class _Stored(Ours):
    """Results go to a store that is read back; when it had them, nothing says."""

    def __init__(self, heat: Heat) -> None:
        super().__init__(heat)
        self._deployment.scrapy_settings.set("SITE_SINKS", self.sink, priority="cmdline")

    def recorded(self) -> int:
        try:
            with closing(parts.reader(self._deployment.scrapy_settings)) as reader:
                return reader.count()
        except SiteSpiderError:  # nothing was written yet
            return 0

    def records(self) -> Iterator[Record]:
        with closing(parts.reader(self._deployment.scrapy_settings)) as reader:
            for found in reader.search(limit=None):
                yield Record(found["url"], found["status"], len(found["body"]), None)


class ToLocal(_Stored):
    """Into SQLite."""

    name = "site_spider, local"
    writes = "SQLite, committed"
    sink = "local"


class ToElasticsearch(_Stored):
    """Into Elasticsearch."""

    name = "site_spider, elasticsearch"
    writes = "Elasticsearch, acknowledged"
    sink = "elasticsearch"
