"""Compares what is stored with what the site serves: every page of every seed has its document, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from site_spider.contracts.seed_log import Message
from site_spider.page.url import url_id
from tools.chaos.pages import paths_of, seed_host
from tools.chaos.site import HOSTS
from tools.site.expected import expected

Document = Mapping[str, Any]
MOST_EXAMPLES = 5
TASK = "chaos"  # of all seeds


class Page(NamedTuple):
    """One page that must be stored."""

    seed: int
    is_root: bool
    url: str

    @property
    def key(self) -> str:
        """The url_id of its document."""
        return root_id(self.seed) if self.is_root else url_id(self.url, TASK)


def root_id(seed: int) -> str:
    """The url_id that a seed asks for."""
    return f"seed-{seed:06d}"


def pages(seeds: int, tree: int, port: int) -> Iterator[Page]:
    """All pages of a run, a seed's own before those that it leads to."""
    for seed in range(seeds):
        host = seed_host(seed, HOSTS)
        for place, path in enumerate(paths_of(seed, tree)):
            yield Page(seed, place == 0, f"http://{host}:{port}{path}")


@dataclass
class Verdict:
    """What came of the seeds."""

    seeds: int
    pages: int
    results: int = 0  # documents that are right
    lost_seeds: int = 0  # of which a page has no document, and which are no dead letter
    lost_pages: int = 0
    dead_letters: int = 0
    requests: int = 0
    twice: int = 0  # requests beyond one for each page
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of the kinds of `wrong`

    def complain(self, kind: str, text: str) -> None:
        """Something is wrong; only the first of a kind are told."""
        self.counts[kind] += 1
        if self.counts[kind] <= MOST_EXAMPLES:
            self.wrong.append(f"{kind}: {text}")


def judge(
    wanted: Sequence[Page],
    documents: Iterable[Document],
    dead_letters: Sequence[Message],
    asked: Counter[str],
    *,
    roots_come_again: bool = False,
) -> Verdict:
    """Look for every page.

    When links go by the topic, a page's link back to the root can reach a process that has not met the
    root, because the one that had was killed: then it has a second document, as any link has.
    """
    verdict = Verdict(len({page.seed for page in wanted}), len(wanted), dead_letters=len(dead_letters))
    missing = {page.key: page for page in wanted}
    again = {url_id(page.url, TASK) for page in wanted if page.is_root} if roots_come_again else set()
    for document in documents:
        page = missing.pop(str(document.get("url_id")), None)
        if page is None and document.get("url_id") in again:
            continue
        if page is None:
            verdict.complain("a document that nothing asked for", str(document.get("url_id")))
        else:
            _compare(verdict, page, document)
    _account(verdict, missing.values(), dead_letters)
    _count_requests(verdict, wanted, asked)
    return verdict


def _compare(verdict: Verdict, page: Page, document: Document) -> None:
    wrong = expected(page.url, extract=False).mismatches(document)
    origin = document.get("seed_url_id"), document.get("task_id")
    meant = None if page.is_root else root_id(page.seed), TASK
    if origin != meant:
        wrong.append(f"seed_url_id and task_id are {origin}, expected {meant}")
    verdict.results += not wrong
    for mistake in wrong:
        verdict.complain("a wrong document", f"{page.url}: {mistake}")


def _account(verdict: Verdict, missing: Iterable[Page], dead_letters: Sequence[Message]) -> None:
    set_aside = Counter(letter.value for letter in dead_letters)
    lost = set()
    for page in missing:
        if page.is_root and seed_value(page.seed, page.url) in set_aside:
            continue
        verdict.lost_pages += 1
        lost.add(page.seed)
        verdict.complain("lost", f"seed {page.seed}, {page.url}")
    verdict.lost_seeds = len(lost)
    for letter in dead_letters:
        reason = dict(letter.headers).get("error", b"?").decode(errors="replace")
        verdict.complain("a dead letter", f"{reason}: {(letter.value or b'')[:120]!r}")


def _count_requests(verdict: Verdict, wanted: Iterable[Page], asked: Counter[str]) -> None:
    known = {page.url for page in wanted}
    verdict.requests = asked.total()
    verdict.twice = sum(count - 1 for url, count in asked.items() if url in known)
    for url in asked.keys() - known:
        verdict.complain("a request that nothing asked for", url)


def seed_value(seed: int, url: str) -> bytes:
    """The message of a seed."""
    return b'{"url": "%b", "meta": {"url_id": "%b", "task_id": "%b"}}' % (
        url.encode(),
        root_id(seed).encode(),
        TASK.encode(),
    )
