"""How long a seed takes from the broker's acknowledgement to its document in Elasticsearch.

    .venv/bin/python -m tools.measure.latency [--seeds 100] [--rate 0]

One crawler runs over the servers that SITE_KAFKA_BROKERS and SITE_ELASTICSEARCH_HOSTS name. The seeds are
sent one after the other, each when the document of the one before is there; `--rate` sends so many further
seeds a second beside them. Documents are asked for by id, which does not wait for a refresh of the index.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import quantiles

from elasticsearch import ApiError, Elasticsearch

from site_spider.adapters.elasticsearch.client import ElasticsearchOptions
from site_spider.contracts.seed_log import Producer
from tools.deployment.deployment import Deployment, wait_until
from tools.site.handle import Site

SERVERS = ("SITE_KAFKA_BROKERS", "SITE_ELASTICSEARCH_HOSTS")
WARM_UP = 10  # seeds that are not counted: the index is made, names and connections are new
LONGEST_SECONDS = 60


class Feed:
    def __init__(self, deployment: Deployment, site: Site) -> None:
        self._deployment, self._site = deployment, site
        self._producer: Producer = deployment.log.producer()
        self._stopping = threading.Event()

    def send(self, name: str) -> None:
        """One seed, whose url_id is its name; the broker has it when this returns."""
        seed = {
            "url": self._site.url("/leaf/latency/0"),
            "meta": {"url_id": name, "NotExtract": True},
            "dont_filter": True,
        }
        self._producer.send(self._deployment.topic, name.encode(), json.dumps(seed).encode()).result(
            LONGEST_SECONDS
        )

    def send_many(self, rate: float) -> None:
        number = 0
        while not self._stopping.wait(1 / rate):
            self.send(f"load-{number}")
            number += 1

    def stop(self) -> None:
        self._stopping.set()


def measured(deployment: Deployment, feed: Feed, client: Elasticsearch, count: int) -> list[float]:
    index, found = deployment.settings["SITE_RESULTS_INDEX"], []
    for number in range(WARM_UP + count):
        name = f"seed-{number}"
        feed.send(name)
        began = time.perf_counter()
        while not _is_there(client, index, name):
            if time.perf_counter() - began > LONGEST_SECONDS:
                raise TimeoutError(
                    f"{name} has no document after {LONGEST_SECONDS} s; see {deployment.folder}"
                )
            time.sleep(0.002)
        found.append((time.perf_counter() - began) * 1000)
        time.sleep(0.05)
    return found[WARM_UP:]


def _is_there(client: Elasticsearch, index: str, name: str) -> bool:
    try:
        return bool(client.exists(index=index, id=name))
    except ApiError:  # its shard is being made
        return False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0)
    options = parser.parse_args()
    if missing := [name for name in SERVERS if not os.environ.get(name)]:
        sys.exit(f'Set {" and ".join(missing)}, for example with: eval "$(./task_shell/servers.sh env)"')
    with tempfile.TemporaryDirectory() as folder, Site(Path(folder) / "record.jsonl") as site:
        settings = {name: os.environ[name] for name in SERVERS} | {"SITE_SINKS": "elasticsearch"}
        deployment = Deployment(Path(folder), settings)
        feed = Feed(deployment, site)
        try:
            feed.send("first")
            deployment.start().wait_assigned()
            with ElasticsearchOptions.from_settings(deployment.scrapy_settings).client(
                Elasticsearch
            ) as client:
                index = deployment.settings["SITE_RESULTS_INDEX"]
                wait_until(lambda: _is_there(client, index, "first"), LONGEST_SECONDS, "the first document")
                if options.rate:
                    threading.Thread(target=feed.send_many, args=(options.rate,), daemon=True).start()
                cuts = quantiles(measured(deployment, feed, client, options.seeds), n=100, method="inclusive")
            others = f"{options.seeds} seeds, {options.rate:g} others a second"
            print(f"{others}: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")
        finally:
            feed.stop()
            deployment.close()


if __name__ == "__main__":
    main()
