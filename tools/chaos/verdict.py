"""What came of the seeds: filled in by the checks, one for each kind of thing that is compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

MOST_EXAMPLES = 5


@dataclass
class Verdict:
    """Of one run."""

    seeds: int = 0
    pages: int = 0
    results: int = 0  # documents that are right
    lost_seeds: int = 0  # of which a page has no document, and which are no dead letter
    lost_pages: int = 0
    deleted: int = 0  # pages that nobody has, and whose seed was deleted with its topic
    dead_letters: int = 0
    requests: int = 0
    twice: int = 0  # requests beyond one for each page
    documents: Counter[str] = field(default_factory=Counter)  # different pages that were answered, by task
    cancelled: Counter[str] = field(default_factory=Counter)  # documents that say so, by task
    rows: list[tuple[str, object]] = field(default_factory=list)  # what further checks put into the table
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of the kinds of `wrong`

    def complain(self, kind: str, text: str) -> None:
        """Something is wrong; only the first of a kind are told."""
        self.counts[kind] += 1
        if self.counts[kind] <= MOST_EXAMPLES:
            self.wrong.append(f"{kind}: {text}")


class Check(Protocol):
    """Compares one kind of thing that the crawl leaves behind."""

    def compare(self, verdict: Verdict) -> None:
        """Fill in what was found."""
