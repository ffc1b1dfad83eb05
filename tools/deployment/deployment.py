"""A deployment under test: a seed log and a sink, real processes, and what they leave behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrapy.settings import Settings

from site_spider.adapters.elasticsearch.client import BoundedNode, ElasticsearchOptions
from site_spider.contracts.seed_log import Message, SeedLog
from site_spider.errors import LogUnavailable, TopicMissing
from site_spider.service import config as parts
from tools.deployment.processes import logged

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "task_shell" / "crawl_spider.sh"


def wait_until(condition: Callable[[], Any], timeout_seconds: float, what: str) -> Any:
    """The first true value of `condition`, which is asked for a fifth of the time at most."""
    deadline = time.monotonic() + timeout_seconds
    began = time.monotonic()
    while not (value := condition()):
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"{what}: not within {timeout_seconds} s")
        time.sleep(min(max(0.1, 4 * (now - began)), 2.0))
        began = time.monotonic()
    return value


class Run:
    """One `crawl_spider.sh` with its log; ended by its own group's id at the latest."""

    def __init__(
        self,
        log: Path,
        environment: Mapping[str, str],
        arguments: Sequence[str],
        script: Path = SCRIPT,
        leash: Sequence[str] = (),
    ) -> None:
        self.log = log
        self.process = logged([*leash, str(script), *arguments], log, environment)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_assigned(self) -> None:
        wait_until(lambda: "Assigned: " in self.text() or self.process.poll() is not None, 300, "an assignment")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_seconds: float) -> int:
        return self.process.wait(timeout_seconds)

    def end(self) -> None:
        """Whatever state it is in, leave nothing behind."""
        for _ in range(2):  # gracefully, then at once: the script's own way, which leaves no crawler behind
            if self.process.poll() is None:
                self.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(3)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(300)


@dataclass
class Deployment:
    """One topic, group and set of stores of its own."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        name = uuid.uuid4().hex[:10]
        self.topic, self.group = f"seeds-{name}", f"group-{name}"
        self.settings |= {
            "SITE_SEED_TOPIC": self.topic,
            "SITE_CONSUMER_GROUP": self.group,
            "SITE_DATA_DIR": str(self.folder / "data"),
            "SITE_RESULTS_INDEX": f"results-{name}",
            "SITE_ITEMS_INDEX": f"items-{name}",
            "SITE_STATS_INDEX": f"stats-{name}",
            "SITE_ALLOW_PRIVATE_HOSTS": "true",
            "SITE_STATS_INTERVAL_SECONDS": "1",
        }
        self.scrapy_settings = Settings()
        self.scrapy_settings.setmodule("site_spider.settings", priority="project")
        self.scrapy_settings.update(self.settings, priority="cmdline")
        self.log: SeedLog = parts.seed_log(self.scrapy_settings)

    def environment(self, **extra: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
        return kept | self.settings | extra

    def start(self, *arguments: str, **extra: str) -> Run:
        run = Run(self.folder / f"crawl-{len(self.runs)}.log", self.environment(**extra), arguments)
        self.runs.append(run)
        return run

    def produce(self, messages: Sequence[tuple[bytes | None, bytes | None]]) -> None:
        """Put messages on the seed topic; durable when this returns."""
        with closing(self.log.producer()) as producer:
            for key, value in messages:
                producer.send(self.topic, key, value)
            assert producer.flush(300) == 0

    def produce_pages(self, url: Callable[[str, int], str], paths: Sequence[str], hosts: int = 1) -> None:
        """A seed without links for each path, over all partitions and hosts; the path is its url_id."""
        seeds = []
        for number, path in enumerate(paths):
            seed = {"url": url(path, number % hosts), "meta": {"url_id": path, "NotExtract": True}}
            seeds.append((path.encode(), json.dumps(seed).encode()))
        self.produce(seeds)

    def is_done(self) -> bool:
        """Whether there is no lag; False while the log cannot be asked."""
        with suppress(LogUnavailable):
            return self.lag() == 0
        return False

    def lag(self, *topics: str) -> int:
        """Offsets that the group has not committed, in these topics or in the one."""
        return sum(
            p.end - (p.committed.offset if p.committed else p.start)
            for topic in topics or (self.topic,)
            for p in self.log.progress(topic, self.group)
        )

    def documents(self) -> dict[str, dict[str, Any]]:
        return {document["url_id"]: document for document in self._stored()}

    def items(self) -> dict[str, dict[str, Any]]:
        return {document.pop("_id"): document for document in self._stored(of_items=True)}

    def _stored(self, *, of_items: bool = False) -> list[dict[str, Any]]:
        with closing(parts.reader(self.scrapy_settings, of_items=of_items)) as reader:
            return list(reader.search(limit=None))

    def statistics(self) -> list[dict[str, Any]]:
        """Every statistics document, from where they were written."""
        if self.settings.get("SITE_ELASTICSEARCH_HOSTS"):
            with ElasticsearchOptions.from_settings(self.scrapy_settings).client(BoundedNode) as client:
                there = {"index": self.settings["SITE_STATS_INDEX"], "ignore_unavailable": True}  # not before the first
                client.indices.refresh(**there)
                found = client.search(**there, size=10_000)
                return [hit["_source"] for hit in found["hits"]["hits"]]
        with closing(sqlite3.connect(Path(self.settings["SITE_DATA_DIR"]) / "results.sqlite")) as store:
            return [json.loads(text) for (text,) in store.execute("SELECT document FROM statistics")]

    def dead_letters(self) -> list[Message]:
        try:
            return list(self.log.read(f"{self.topic}.dead-letters"))
        except TopicMissing:
            return []

    def close(self) -> None:
        for run in self.runs:
            run.end()
        self.log.close()


def opened(folder: Path, settings: dict[str, str]) -> Iterator[Deployment]:
    """For fixtures: a deployment that is closed at the end of the test."""
    with closing(Deployment(folder, settings)) as deployment:
        yield deployment
