"""The main job on real servers: seeds in, every result compared with what the site served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from site_spider.contracts.seed_log import Message
from site_spider.observe.snapshot import is_conserved
from site_spider.page.url import url_id
from tests.acceptance.test_deadly_seeds import crawlers
from tools.deployment.deployment import Deployment, wait_until
from tools.site.bad_messages import BadMessage, bad_messages
from tools.site.expected import Expectation, page_url
from tools.site.handle import Site, count_by_url
from tools.site.plan import PlannedSeed

pytestmark = pytest.mark.servers
DONE_SECONDS = 400

HOSTS = 60


def mixed(seeds: Sequence[PlannedSeed], bad: Sequence[BadMessage]) -> list[tuple[bytes | None, bytes | None]]:
    """Good and bad messages, the bad ones spread among the good."""
    messages: list[tuple[bytes | None, bytes | None]] = [(seed.key, seed.value) for seed in seeds]
    step = len(messages) // len(bad)
    for number, message in enumerate(bad):
        messages.insert(number * (step + 1), (message.key, message.value))
    return messages


class Stored:
    """The documents of a run, to be found by seed or by URL."""

    def __init__(self, documents: dict[str, dict[str, Any]]) -> None:
        self.by_id = documents
        self.by_url = {page_url(document["url"]): document for document in documents.values()}

    def of(self, seed: PlannedSeed) -> dict[str, Any] | None:
        key = seed.url_id or url_id(seed.url, seed.seed.get("meta", {}).get("task_id"))
        return self.by_id.get(key) or (None if seed.url_id else self.by_url.get(page_url(seed.url)))

    def mistakes(self, seeds: Sequence[PlannedSeed]) -> list[str]:
        found = []
        for seed in seeds:
            found += self._compare(f"{seed.kind} {seed.url}", self.of(seed), seed.expectation)
            found += self._wrong_origin(seed)
            for url, child in seed.expectation.tree.items():
                found += self._compare(f"{seed.kind} link {url}", self.by_url.get(url), child)
        return found

    def _compare(self, what: str, document: dict[str, Any] | None, expected: Expectation) -> list[str]:
        if document is None:
            return [f"{what}: no document"]
        return [f"{what}: {mistake}" for mistake in expected.mismatches(document)]

    def _wrong_origin(self, seed: PlannedSeed) -> list[str]:
        document, meta = self.of(seed) or {}, dict(seed.seed.get("meta", {}))
        ours = {"url_id", "NotExtract", "task_id", "depth"}
        extra = {name: value for name, value in meta.items() if name not in ours}
        wrong = []
        if document.get("meta", {}) != extra:
            wrong.append(f"{seed.url}: meta is {document.get('meta')}, expected {extra}")
        if document.get("task_id") != meta.get("task_id"):
            wrong.append(f"{seed.url}: task_id is {document.get('task_id')}")
        return wrong


def check_dead_letters(letters: Sequence[Message], bad: Sequence[BadMessage], topic: str) -> None:
    """Each bad message is a dead letter once, with its original bytes, its reason and its origin."""
    expected = Counter((message.key, message.value) for message in bad)
    assert Counter((letter.key, letter.value) for letter in letters) == expected
    by_value = {message.value: message for message in bad}
    origins = set()
    for letter in letters:
        headers = {name: value.decode() for name, value in letter.headers}
        assert headers.keys() >= {"error", "origin_topic", "origin_partition", "origin_offset", "failed_at"}
        assert by_value[letter.value].explains(headers["error"]), (by_value[letter.value].name, headers["error"])
        assert headers["origin_topic"] == topic
        origins.add((headers["origin_partition"], headers["origin_offset"]))
    assert len(origins) == len(bad)


def check_statistics(documents: Sequence[dict[str, Any]], seeds: int, dead_letters: int) -> None:
    """Seeds are conserved at every tick, intervals add up to totals, the last ones to what was produced."""
    assert [d for d in documents if not is_conserved(d["seeds"])] == []
    last: dict[str, dict[str, Any]] = {}
    added: Counter[str] = Counter()
    for document in sorted(documents, key=lambda document: document["@timestamp"]):
        last[document["process"]] = document
        added[document["process"]] += document["interval_num"]
    assert len(last) == 2
    assert {process: document["total_num"] for process, document in last.items()} == dict(added)
    ends = Counter[str]()
    for document in last.values():
        ends.update(document["seeds"])
    assert ends["in_flight"] == 0
    assert ends["dead_lettered"] == dead_letters
    assert ends["completed"] == ends["consumed"] == seeds + dead_letters
    assert all(document["total_response_size"] > document["total_num"] > 0 for document in last.values())


def wait_until_told(deployment: Deployment, seeds: int) -> None:
    """Until nothing is left to do and the statistics say so: the very last ones may be lost in a stop."""

    def completed() -> int:
        newest: dict[str, int] = {}
        for document in sorted(deployment.statistics(), key=lambda document: document["@timestamp"]):
            newest[document["process"]] = document["seeds"]["completed"]
        return sum(newest.values())

    wait_until(deployment.is_done, DONE_SECONDS, "the end of the lag")
    wait_until(lambda: completed() == seeds, DONE_SECONDS, f"statistics of {seeds} seeds")


def crawl_and_check(deployment: Deployment, site: Site, count: int) -> None:
    """Two processes crawl seeds among which bad ones are mixed, one leaves; everything is compared."""
    seeds, bad = site.seeds(count, rng_seed=1), bad_messages(site.port)
    deployment.produce([(None, b"first: makes the topic")])
    run = deployment.start("-n", "2")
    wait_until(lambda: run.text().count("Assigned: ") >= 2, DONE_SECONDS, "both processes")
    first, second = crawlers(run)
    deployment.produce(mixed(seeds[100:], bad))
    wait_until_told(deployment, 1 + len(seeds) - 100 + len(bad))
    assert deployment.start("--scale", "1").wait(DONE_SECONDS) == 0
    (left,) = wait_until(lambda: one if len(one := crawlers(run)) == 1 else [], DONE_SECONDS, "one to leave")
    assert left in {first, second}
    deployment.produce([(seed.key, seed.value) for seed in seeds[:100]])
    wait_until_told(deployment, 1 + len(seeds) + len(bad))
    run.terminate()
    assert run.wait(DONE_SECONDS) == 0

    assert deployment.lag() == 0
    assert "starting again" not in run.text()
    stored = Stored(deployment.documents())
    assert stored.mistakes(seeds) == []
    first_message = BadMessage("first", None, b"first: makes the topic", "JSON")
    check_dead_letters(deployment.dead_letters(), [*bad, first_message], deployment.topic)
    entries = site.entries()
    assert [entry for entry in entries if entry.kind in {"outside", "never"}] == []
    counts = count_by_url(entries)
    requests = [(url, most, counts[url]) for s in seeds for url, (_, most) in s.expectation.requests.items()]
    too_often = [row for row in requests if row[2] > row[1]]
    assert too_often == []
    check_statistics(deployment.statistics(), seeds=len(seeds), dead_letters=len(bad) + 1)


def test_seeds_of_all_kinds_go_through_kafka_into_elasticsearch(on_servers: Deployment, site: Site) -> None:
    """Every document is as the site served it, every bad seed is a dead letter, the lag ends at 0."""
    crawl_and_check(on_servers, site, 1000)


@pytest.mark.nightly
def test_five_thousand_seeds_with_the_embedded_default(deployment: Deployment, site: Site) -> None:
    crawl_and_check(deployment, site, 5000)
