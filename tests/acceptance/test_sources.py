"""Lists, details and comments apart, over real Kafka: three groups, and processes that are killed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.adapters.raw_server import Asked, Said, answering, said
from tests.commands.project import ROOT
from tools.deployment.deployment import Deployment, opened, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.nightly]

LISTS, DETAILS = 30, 12
WITH_COMMENTS = {f"{n}-{m}" for n in range(LISTS) for m in range(0, DETAILS, 3)}
SOURCE = """
match: {{hosts: [127.0.0.1]}}
request: {{concurrency: 4}}
follow:
  - {{allow: ['/detail/'], to: {details}}}
  - {{allow: ['/comments/'], to: {comments}, not_extract: true}}
items: [{{urls: ['/detail/'], fields: {{item_id: {{css: h1}}}}}}]
"""


ASKED = Counter[str]()


@pytest.fixture
def url() -> Iterator[str]:
    """Lists of links to details, of which every third has comments."""

    def page(asked: Asked) -> Said:
        ASKED[asked.path] += 1
        found = re.fullmatch(r"/list/(\d+)", asked.path)
        links = [f"/detail/{found[1]}-{n}" for n in range(DETAILS)] if found else []
        if (found := re.fullmatch(r"/detail/(\d+-\d+)", asked.path)) and found[1] in WITH_COMMENTS:
            links = [f"/comments/{found[1]}"]
        body = f"<h1>{asked.path}</h1>" + "".join(f'<a href="{link}">x</a>' for link in links)
        return said(body.encode(), kind="text/html")

    ASKED.clear()
    with answering(page) as address:
        yield address


class Group:
    """One process of one group."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.log = deployment.folder / "crawl.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **settings: str) -> None:
        arguments = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "scrapy", "crawl", "crawl_spider", *arguments],
                cwd=ROOT, env=self.deployment.environment(), stdout=log, stderr=log,
            )  # fmt: skip

    def end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(300)


@pytest.fixture
def groups(tmp_path: Path, kafka_brokers: str) -> Iterator[list[Group]]:
    """Of lists, details and comments; the source sends from one to the next."""
    sources = tmp_path / "sources"
    sources.mkdir()
    settings = {"SITE_KAFKA_BROKERS": kafka_brokers, "SITE_SOURCES_DIR": str(sources)}
    with ExitStack() as stack:
        deployments = []
        for name in ("lists", "details", "comments"):
            (tmp_path / name).mkdir()
            deployments.append(stack.enter_context(contextmanager(opened)(tmp_path / name, dict(settings))))
        _, details, comments = (deployment.topic for deployment in deployments)
        (sources / "shop.yaml").write_text(SOURCE.format(details=details, comments=comments))
        admin = AdminClient({"bootstrap.servers": kafka_brokers})
        topics = [NewTopic(deployment.topic, 2, 1) for deployment in deployments]
        for future in admin.create_topics(topics).values():
            future.result()
        all_groups = [Group(deployment) for deployment in deployments]
        for group in all_groups:
            stack.callback(group.end, signal.SIGKILL)
        yield all_groups


def asked(kind: str) -> int:
    return sum(times for path, times in ASKED.copy().items() if path.startswith(f"/{kind}/"))


def test_lists_details_and_comments_apart_with_a_kill_of_each(groups: list[Group], url: str) -> None:
    """360 details and 120 comments, none lost; what was committed of the lists is not crawled again."""
    lists, details, comments = groups
    seeds = [json.dumps({"url": f"{url}/list/{n}"}).encode() for n in range(LISTS)]
    lists.deployment.produce([(str(n).encode(), seed) for n, seed in enumerate(seeds)])
    slow = {"DOWNLOAD_DELAY": "0.1", "CONCURRENT_REQUESTS_PER_DOMAIN": "1"}
    lists.start(**slow)
    details.start()
    comments.start(**slow)
    wait_until(lambda: asked("list") >= 10, 300, "10 lists")
    lists.end(signal.SIGKILL)
    at_kill = asked("list")
    undone = lists.deployment.lag()
    lists.start(**slow)
    wait_until(lambda: asked("detail") >= 200, 300, "200 details")
    details.end(signal.SIGKILL)
    details.start()
    wait_until(lambda: asked("comments") >= 20, 300, "20 comments")
    comments.end(signal.SIGKILL)
    comments.start()
    for group in groups:
        wait_until(group.deployment.is_done, 300, "all seeds of a group")
    for group in groups:
        group.end(signal.SIGTERM)
    found = {document["url"].removeprefix(url) for document in details.deployment.documents().values()}
    assert found == {f"/detail/{n}-{m}" for n in range(LISTS) for m in range(DETAILS)}
    done = {document["url"].removeprefix(url) for document in lists.deployment.documents().values()}
    assert done == {f"/list/{n}" for n in range(LISTS)}
    assert asked("list") <= at_kill + undone
    commented = {document["url"].removeprefix(url) for document in comments.deployment.documents().values()}
    assert commented == {f"/comments/{name}" for name in WITH_COMMENTS}
    assert [group.deployment.dead_letters() for group in groups] == [[], [], []]
    print(f"lists {asked('list')} fetches, details {asked('detail')} fetches")
