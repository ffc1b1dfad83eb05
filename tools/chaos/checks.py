"""Compares what is stored, and what was requested, with what the site serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from site_spider.contracts.seed_log import Message
from tools.chaos.outlet import Stored
from tools.chaos.verdict import Verdict
from tools.chaos.workload import ITEMS_OF_A_PAGE, Page, item_text, root_id
from tools.site.expected import expected

CANCELLED = "CancelledError:"  # begins the description of what was cancelled


class DocumentCheck:
    """Every page of every seed has its document, and is stored once; or its seed is a dead letter.

    A page's link back to the root can reach a process that has not met the root, because the one that had was
    killed, and what that knew with it: then the root has a second document, as any link has.
    """

    def __init__(
        self,
        wanted: Sequence[Page],
        stored: Iterable[Stored],
        dead_letters: Collection[str] = (),
        *,
        is_once: bool = True,
        roots_come_again: bool = False,
        cancelled: Collection[str] = (),
        each_cancelled: bool = False,
        deleted: Collection[int] = (),
    ) -> None:
        self._wanted = wanted
        self._stored = stored
        self._deleted = deleted  # seeds
        self._dead_letters = dead_letters  # the url_ids that they ask for
        self._is_once = is_once
        self._roots_come_again = roots_come_again
        self._cancelled = cancelled  # tasks
        self._each_cancelled = each_cancelled  # what is cancelled has a document that says so
        self._answered: set[str] = set()  # pages; a root that comes again has two documents

    def compare(self, verdict: Verdict) -> None:
        """As in Check."""
        pages = {page.key: page for page in self._wanted}
        again = {page.key_of_link: page for page in self._wanted if page.is_root and self._roots_come_again}
        verdict.seeds, verdict.pages = len({page.seed for page in self._wanted}), len(pages)
        times: Counter[str] = Counter()
        for key, document in self._stored:
            page = pages.get(key) or again.get(key)
            if page is None:
                verdict.complain("a document that nothing asked for", key)
                continue
            times[key] += 1
            if times[key] == 1:
                self._look(verdict, page, document, is_wanted=key in pages)
            elif self._is_once:
                verdict.complain("a document twice", f"{key}, {page.url}")
        if second := sum(key in again for key in times):
            verdict.rows.append(("roots with a second document, as links", second))
        self._account(verdict, (page for key, page in pages.items() if key not in times))

    def _look(self, verdict: Verdict, page: Page, document: Mapping[str, Any], *, is_wanted: bool) -> None:
        if page.task in self._cancelled and str(document.get("description")).startswith(CANCELLED):
            verdict.cancelled[page.task] += 1
            return
        if page.key not in self._answered:
            self._answered.add(page.key)
            verdict.documents[page.task] += 1
        wrong = expected(page.url, extract=False).mismatches(document)
        if is_wanted:
            wrong += _origin(page, document)
            verdict.results += not wrong
        for mistake in wrong:
            verdict.complain("a wrong document", f"{page.url}: {mistake}")

    def _account(self, verdict: Verdict, missing: Iterable[Page]) -> None:
        lost = set()
        for page in missing:
            if page.seed in self._deleted:
                verdict.deleted += 1
                continue
            if page.key in self._dead_letters:
                continue
            if page.task in self._cancelled and not (self._each_cancelled and page.is_root):
                continue
            verdict.lost_pages += 1
            lost.add(page.seed)
            verdict.complain("lost", f"seed {page.seed}, {page.url}")
        verdict.lost_seeds = len(lost)


def _origin(page: Page, document: Mapping[str, Any]) -> list[str]:
    origin = document.get("seed_url_id"), document.get("task_id")
    meant = None if page.is_root else root_id(page.seed), page.task
    return [] if origin == meant else [f"seed_url_id and task_id are {origin}, expected {meant}"]


class ItemCheck:
    """Every page has its items, each once."""

    def __init__(
        self,
        wanted: Sequence[Page],
        stored: Iterable[Stored],
        *,
        is_once: bool = True,
        roots_come_again: bool = False,
        cancelled: Collection[str] = (),
        deleted: Collection[int] = (),
    ) -> None:
        self._wanted = wanted
        self._stored = stored
        self._deleted = deleted  # seeds
        self._is_once = is_once
        self._roots_come_again = roots_come_again
        self._cancelled = cancelled

    def compare(self, verdict: Verdict) -> None:
        """As in Check."""
        texts = _texts((page.key, page) for page in self._wanted)
        roots = [page for page in self._wanted if page.is_root and self._roots_come_again]
        again = _texts((page.key_of_link, page) for page in roots)
        times: Counter[str] = Counter()
        for key, document in self._stored:
            text = texts.get(key) or again.get(key)
            times[key] += 1
            if text is None:
                verdict.complain("an item that nothing asked for", key)
            elif document.get("text") != text:
                verdict.complain("a wrong item", f"{key} says {document.get('text')!r}, expected {text!r}")
            elif times[key] > 1 and self._is_once:
                verdict.complain("an item twice", f"{key}, {text}")
        for page in self._wanted:
            lost = [key for key in _keys(page.key) if key not in times]
            may_lack = page.task in self._cancelled or page.seed in self._deleted
            for key in () if may_lack else lost:
                verdict.complain("a lost item", f"{key} of {page.url}")
        verdict.rows.append(("items", len(times)))


def _keys(page_key: str) -> list[str]:
    return [f"{page_key}-{place}" for place in range(1, ITEMS_OF_A_PAGE + 1)]


def _texts(pages: Iterable[tuple[str, Page]]) -> dict[str, str]:
    return {
        key: item_text(page.url, place)
        for page_key, page in pages
        for place, key in enumerate(_keys(page_key), 1)
    }


class DeadLetterCheck:
    """There are none: all seeds are valid."""

    def __init__(self, dead_letters: Iterable[Message]) -> None:
        self._dead_letters = list(dead_letters)

    def compare(self, verdict: Verdict) -> None:
        """As in Check."""
        verdict.dead_letters = len(self._dead_letters)
        for letter in self._dead_letters:
            reason = dict(letter.headers).get("error", b"?").decode(errors="replace")
            verdict.complain("a dead letter", f"{reason}: {(letter.value or b'')[:120]!r}")


class RequestCheck:
    """How often pages were requested, and that nothing else was."""

    def __init__(self, wanted: Iterable[Page], asked: Counter[str]) -> None:
        self._wanted = wanted
        self._asked = asked

    def compare(self, verdict: Verdict) -> None:
        """As in Check."""
        known = {page.url for page in self._wanted}
        verdict.requests = self._asked.total()
        verdict.twice = sum(count - 1 for url, count in self._asked.items() if url in known)
        for url in self._asked.keys() - known:
            verdict.complain("a request that nothing asked for", url)
