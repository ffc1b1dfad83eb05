"""How long a seed takes from the broker's acknowledgement to its document in Elasticsearch.

    .venv/bin/python -m tools.measure.latency [--seeds 100] [--rate 0]

One crawler runs over the servers that SITE_KAFKA_BROKERS and SITE_ELASTICSEARCH_HOSTS name. The seeds are
sent one after the other, each when the document of the one before is there; `--rate` sends so many further
seeds a second beside them. Documents are asked for by id, which does not wait for a refresh of the index.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from statistics import quantiles

from elasticsearch import ApiError

from site_spider.adapters.elasticsearch.client import BoundedNode, ElasticsearchOptions
from site_spider.contracts.seed_log import Producer
from tools.deployment.deployment import Deployment, wait_until
from tools.site.handle import Site

SERVERS = ("SITE_KAFKA_BROKERS", "SITE_ELASTICSEARCH_HOSTS")
WARM_UP = 10  # seeds that are not counted: the index is made, names and connections are new
LONGEST_SECONDS = 60


def send(deployment: Deployment, producer: Producer, site: Site, name: str) -> None:
    """One seed, whose url_id is its name; the broker has it when this returns."""
    meta = {"url_id": name, "NotExtract": True}
    seed = {"url": site.url("/leaf/latency/0"), "meta": meta, "dont_filter": True}
    future = producer.send(deployment.topic, name.encode(), json.dumps(seed).encode())
    future.result(LONGEST_SECONDS)


def measured(deployment: Deployment, site: Site, count: int, rate: float) -> list[float]:
    """Milliseconds of each seed; so many others a second are sent beside them."""
    producer, stopping, found = deployment.log.producer(), threading.Event(), []
    index, options = deployment.settings["SITE_RESULTS_INDEX"], deployment.scrapy_settings
    client = ElasticsearchOptions.from_settings(options).client(BoundedNode)

    def is_there(name: str) -> bool:
        try:
            return bool(client.exists(index=index, id=name))
        except ApiError:  # its shard is being made
            return False

    def send_many() -> None:
        for number in itertools.takewhile(lambda _: not stopping.wait(1 / rate), itertools.count()):
            send(deployment, producer, site, f"load-{number}")

    send(deployment, producer, site, "first")
    deployment.start().wait_assigned()
    wait_until(lambda: is_there("first"), LONGEST_SECONDS, "the first document")
    load = threading.Thread(target=send_many)
    if rate:
        load.start()
    try:
        for number in range(WARM_UP + count):
            send(deployment, producer, site, f"seed-{number}")
            began = time.perf_counter()
            while not is_there(f"seed-{number}"):
                if time.perf_counter() - began > LONGEST_SECONDS:
                    raise TimeoutError(f"no document after {LONGEST_SECONDS} s; see {deployment.folder}")
                time.sleep(0.002)
            found.append((time.perf_counter() - began) * 1000)
            time.sleep(0.05)
    finally:
        stopping.set()
        if rate:
            load.join()
        producer.close()
        client.close()
    return found[WARM_UP:]


def main() -> None:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--rate", type=float, default=0)
    options = parser.parse_args()
    if missing := [name for name in SERVERS if not os.environ.get(name)]:
        sys.exit(f'Set {" and ".join(missing)}, for example with: eval "$(./task_shell/servers.sh env)"')
    settings = {name: os.environ[name] for name in SERVERS} | {"SITE_SINKS": "elasticsearch"}
    with tempfile.TemporaryDirectory() as folder, Site(Path(folder) / "record.jsonl") as site:
        with closing(Deployment(Path(folder), settings)) as deployment:
            found = measured(deployment, site, options.seeds, options.rate)
        cuts = quantiles(found, n=100, method="inclusive")
        others = f"{options.seeds} seeds, {options.rate:g} others a second"
        print(f"{others}: p50 {cuts[49]:.0f} ms, p99 {cuts[98]:.0f} ms")


if __name__ == "__main__":
    main()
