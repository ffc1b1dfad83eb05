"""Processes of the release before and of this one share a group: upgrades and rollbacks lose nothing."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.older_release import Versions, older_release
from tests.acceptance.test_deadly_seeds import crawlers
from tools.deployment.deployment import Deployment, Run, wait_until
from tools.site.handle import Site

pytestmark = pytest.mark.servers
HOSTS = 8
SINGLES = 60  # pages of a wave that stand alone
TREES = 12  # of a wave: so many that some leave for the process of the other release, whoever has which host
PAGES_OF_A_TREE = 13  # of tools/site/pages.py, down to DEPTH_LIMIT
HOLDING = 2  # pages of a wave that keep back watermarks, for longer than a stop waits
OLDER, NEWER = True, False
# How the older release logs a page that outlasts its stop, whose seed is repeated. This one says it in a line.
OUTLASTED = re.compile(r"^site_spider\.errors\.SinkUnavailable: \w+: nothing can be delivered after the end", re.M)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return older_release(tmp_path_factory.mktemp("older"))


@pytest.fixture
def deployment(on_servers: Deployment) -> Deployment:
    """Each link leaves, and a stop waits for a second only."""
    on_servers.settings |= {"SITE_LINKS_TO": "kafka", "SITE_STOP_GRACE_SECONDS": "1", "CONCURRENT_REQUESTS": "8"}
    return on_servers


class Waves:
    """Seeds of one page and seeds with links, produced in waves so that each process is replaced at work."""

    def __init__(self, deployment: Deployment, site: Site) -> None:
        self._deployment = deployment
        self._site = site
        self.singles: list[str] = []
        self.trees: list[str] = []

    def begin(self) -> None:
        """Produce one more, and wait until some of it is fetched."""
        wave = len(self.trees)
        alone = [f"/slow/150/{wave}-{number}" for number in range(SINGLES)]
        alone[5:5] = [f"/slow/4000/{wave}-{number}" for number in range(HOLDING)]
        trees = [f"w{wave}t{number}" for number in range(TREES)]
        fetched = len(self._site.entries())
        seeds = [self._tree(at, name) for at, name in enumerate(trees)]
        self._deployment.produce(seeds + [self._single(at, path) for at, path in enumerate(alone)])
        self.singles += alone
        self.trees += trees
        wait_until(lambda: len(self._site.entries()) >= fetched + SINGLES // 2, 300, "the middle of a wave of seeds")

    def begin_until(self, condition: Callable[[], bool]) -> None:
        """One after the other, for five minutes at most."""
        until = time.monotonic() + 300
        while not condition() and time.monotonic() < until:
            self.begin()

    def _tree(self, at: int, name: str) -> tuple[bytes, bytes]:
        """Its pages link to its first one, which therefore has the id that links get."""
        return name.encode(), json.dumps({"url": self._site.url(f"/graph/{name}/0/0", at % HOSTS)}).encode()

    def _single(self, at: int, path: str) -> tuple[bytes, bytes]:
        seed = {"url": self._site.url(path, at % HOSTS), "meta": {"url_id": path, "NotExtract": True}}
        return path.encode(), json.dumps(seed).encode()

    def repeated(self) -> int:
        """How many requests of single pages were made more than once."""
        asked = Counter(entry.path for entry in self._site.entries())
        return sum(asked[path] - 1 for path in self.singles if asked[path])


def leave(run: Run, how: signal.Signals) -> None:
    """As an operator ends it, or as a machine that fails does."""
    if how is signal.SIGTERM:
        run.terminate()
        assert run.wait(300) == 0
        return
    victims = wait_until(lambda: crawlers(run), 300, "the crawler")
    os.kill(run.process.pid, signal.SIGKILL)  # which starts crawlers again
    for victim in victims:
        with suppress(ProcessLookupError):  # the kernel was faster
            os.kill(victim, signal.SIGKILL)
    run.process.wait(300)


def crossings(documents: dict[str, dict[str, Any]]) -> set[tuple[bool, bool]]:
    """Which release sent a link, and which fetched its page; by a field that the older one does not write."""
    by_older = {url_id: "registered_domain" not in document for url_id, document in documents.items()}
    parents = {url_id: document.get("parent_url_id") for url_id, document in documents.items()}
    found = [(by_older[parent], by_older[child]) for child, parent in parents.items() if parent in by_older]
    print(f"links by release of parent and child: {Counter(found)}")
    return set(found)


def told(deployment: Deployment) -> set[str]:
    """The processes that have statistics."""
    return {document["process"] for document in deployment.statistics()}


def wait_until_told(deployment: Deployment) -> None:
    """A stop that lasts a second may lose the first ones of a process."""
    wait_until(lambda: len(told(deployment)) >= len(deployment.runs), 300, "statistics of each process")


@pytest.mark.parametrize(
    ("order", "how"),
    [
        ((OLDER, NEWER, OLDER), signal.SIGTERM),
        pytest.param((NEWER, OLDER, NEWER), signal.SIGKILL, marks=pytest.mark.nightly),
    ],
    ids=["upgrade, then rollback", "rollback, then upgrade, by kill -9"],
)
def test_processes_are_replaced_one_by_one_by_those_of_the_other_release(
    older: Path, deployment: Deployment, site: Site, order: tuple[bool, ...], how: signal.Signals
) -> None:
    """While they crawl. Every page has its document, and messages that have left were taken by both."""
    versions, waves = Versions(deployment, older), Waves(deployment, site)
    fleet = [versions.start(older=order[0]), versions.start(older=order[0])]
    repeated = []
    for of_older, replaced in itertools.product(order[1:], range(len(fleet))):
        wait_until_told(deployment)
        waves.begin()
        leave(fleet.pop(0), how)
        fleet.append(versions.start(older=of_older))
        repeated.append(waves.repeated())
        if replaced == 0:  # one process of each release
            waves.begin_until(lambda: crossings(deployment.documents()) >= {(OLDER, NEWER), (NEWER, OLDER)})
    wait_until(deployment.is_done, 300, "the end of the lag")
    wait_until_told(deployment)
    for run in fleet:
        run.terminate()
    assert [run.wait(300) for run in fleet] == [0, 0]
    print(f"requests of {len(waves.singles)} single pages made again: {repeated}, then {waves.repeated()}")

    documents = deployment.documents()
    assert set(waves.singles) <= documents.keys()
    parts = Counter(part for document in documents.values() for part in set(document["url"].split("/")))
    assert {tree: parts[tree] for tree in waves.trees} == dict.fromkeys(waves.trees, PAGES_OF_A_TREE)
    assert len(documents) == len(waves.singles) + PAGES_OF_A_TREE * len(waves.trees)
    assert {document["status"] for document in documents.values()} == {200, 404}
    assert crossings(documents) >= {(OLDER, NEWER), (NEWER, OLDER)}
    assert deployment.dead_letters() == []
    assert len(told(deployment)) == len(deployment.runs)
    for run in deployment.runs:
        outlasted = len(OUTLASTED.findall(run.text())) if run in versions.older else 0
        assert run.text().count("Traceback") == outlasted
        assert run.text().count(" ERROR: ") == outlasted
