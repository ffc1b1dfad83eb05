"""A tree whose crawler is killed once, three times and seven times: what is fetched again.

pytest tests/acceptance/test_long_trees.py -s
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.test_deaths import crawlers
from tests.adapters.raw_server import Asked, Said, answering, said
from tools.deployment.deployment import Deployment, Run, opened, wait_until

pytestmark = pytest.mark.servers
CHILDREN = 12  # three levels, within DEPTH_LIMIT
PAGE_SECONDS = 0.1  # long against the half second that an acknowledgement takes
KILLED_AT = (0.15, 0.4, 0.7)  # of the pages


class Tree:
    """Each page links to its children, its parent and the root, and counts its visits."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.visits: Counter[str] = Counter()
        self.address = ""

    def url(self) -> str:
        return f"{self.address}/0"

    def page(self, asked: Asked) -> Said:
        self.visits[asked.path] += 1
        time.sleep(PAGE_SECONDS)
        number = int(asked.path[1:])
        children = range(CHILDREN * number + 1, CHILDREN * number + CHILDREN + 1)
        parent = (number - 1) // CHILDREN if number else 0
        linked = [0, parent, *(each for each in children if each < self.pages)]
        return said("".join(f'<a href="/{each}">x</a>' for each in linked).encode(), kind="text/html")


def served(tree: Tree) -> Iterator[Tree]:
    with answering(tree.page) as tree.address:
        yield tree


@pytest.fixture
def tree() -> Iterator[Tree]:
    yield from served(Tree(1000))


@pytest.fixture
def deployment(tmp_path: Path, kafka_brokers: str) -> Iterator[Deployment]:
    yield from opened(tmp_path, {"SITE_KAFKA_BROKERS": kafka_brokers})


def kill(run: Run) -> None:
    (victim,) = wait_until(lambda: crawlers(run), 300, "the crawler")
    assigned = run.text().count("Assigned: ")
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: run.text().count("Assigned: ") > assigned, 300, "a new assignment")


def crawl_under_kills(deployment: Deployment, tree: Tree, shares: tuple[float, ...], **settings: str) -> float:
    """Requests a page."""
    deployment.produce([(b"127.0.0.1", json.dumps({"url": tree.url()}).encode())])
    run = deployment.start("-c", "4", "--until-done", **settings)
    for share in shares:
        wait_until(lambda share=share: len(tree.visits) > share * tree.pages, 300, f"{share} of the tree")
        kill(run)
    assert run.wait(300) == 0
    assert len(deployment.documents()) == tree.pages == len(tree.visits)
    assert deployment.dead_letters() == []
    print(f"{settings}: {sum(tree.visits.values()) / tree.pages:.2f} requests a page over {len(shares)} kills")
    return sum(tree.visits.values()) / tree.pages


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("links_to", "dupefilter", "tree_pages"),
    [
        ("memory", "memory", 100),
        ("memory", "local", 100),
        ("memory", "local", 500),
        ("kafka", "memory", 500),
        ("kafka", "local", 500),
    ],
)
def test_three_kills_repeat_little_of_a_tree(
    deployment: Deployment, tree: Tree, links_to: str, dupefilter: str, tree_pages: int
) -> None:
    """The first kill repeats up to SITE_TREE_MAX_PAGES, and the later ones what was under way."""
    requests_a_page = crawl_under_kills(
        deployment,
        tree,
        KILLED_AT,
        SITE_LINKS_TO=links_to,
        SITE_DUPEFILTER=dupefilter,
        SITE_TREE_MAX_PAGES=str(tree_pages),
    )
    assert requests_a_page < 1.5  # 1.02 to 1.2 on a machine that is not busy
