"""How the messages of a task have ended: counts that can be added up, and what they say of its seeds.

Theory of operation. A name of a count is an outcome. A message that is not as its producer sent it has a
prefix before it: `link:` for a link that another process found, `moved:` for a seed that was put back after a
pause, or went on in another process. A message whose outcome is `spilled` has left, and comes again with a
prefix. So each seed of a producer is counted once without `spilled`, wherever it was moved meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from site_spider.ledger.ledger import Outcome
from site_spider.seed.seed import Seed

_MOVED_HEADER = "moved"
MOVED = ((_MOVED_HEADER, b""),)  # headers of a seed that was put back from the parked topic
_LINK, _MOVED = "link:", "moved:"
_SPILLED = "spilled"


@dataclass(frozen=True, slots=True)
class Counts:
    """`seeds` by name. Times are milliseconds since 1970, 0 for none. Two messages may count one page."""

    seeds: Mapping[str, int] = field(default_factory=dict)
    first_ms: int = 0
    last_ms: int = 0
    pages: int = 0  # that were answered
    size_bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        """The sum; of the times the first and the last."""
        starts = [count.first_ms for count in (self, other) if count.first_ms]
        names = {**self.seeds, **other.seeds}
        return Counts(
            {name: self.seeds.get(name, 0) + other.seeds.get(name, 0) for name in names},
            min(starts, default=0),
            max(self.last_ms, other.last_ms),
            self.pages + other.pages,
            self.size_bytes + other.size_bytes,
        )

    def fields(self) -> dict[str, Any]:
        """For JSON; `read` is the inverse."""
        fields = {"seeds": dict(self.seeds), "first": self.first_ms, "last": self.last_ms}
        return {**fields, "pages": self.pages, "bytes": self.size_bytes}

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """From JSON. Raises KeyError, TypeError, ValueError for anything else."""
        seeds = {str(name): int(count) for name, count in dict(given["seeds"]).items()}
        pages, size_bytes = (int(given.get(name, 0)) for name in ("pages", "bytes"))
        return cls(seeds, int(given["first"]), int(given["last"]), pages, size_bytes)

    @property
    def as_sent(self) -> int:
        """How many messages of producers were counted."""
        return sum(count for name, count in self.seeds.items() if ":" not in name)


NOTHING = Counts()


def prefix_of(seed: Seed, headers: Sequence[tuple[str, bytes]]) -> str:
    """What stands before the outcome of a message; empty for a seed as its producer sent it."""
    if seed.spilled is not None:
        return _LINK if seed.spilled.is_link or seed.parent_url_id is not None else _MOVED
    return _MOVED if any(name == _MOVED_HEADER for name, _ in headers) else ""


class SeedCounts(NamedTuple):
    """The counts of a task as they are shown: its seeds by outcome, and apart from them what moved."""

    seeds: dict[str, int]
    moved: dict[
        str, int
    ]  # spilled: messages that left; returned: of these, seeds that came; links: that came

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Self:
        """Of counts by name."""
        seeds: Counter[str] = Counter()
        moved: Counter[str] = Counter()
        for name, count in counts.items():
            kind, _, outcome = name.rpartition(":")
            moved[{"link": "links", "moved": "returned"}.get(kind, "")] += count
            if outcome == _SPILLED:
                moved[_SPILLED] += count
            elif kind != "link":
                seeds[outcome] += count
        del moved[""]
        ordered = {outcome.value: seeds.pop(outcome.value, 0) for outcome in Outcome}
        return cls({name: count for name, count in (ordered | seeds).items() if count}, dict(+moved))

    def fields(self) -> dict[str, dict[str, int]]:
        """For events and programs."""
        return {"seeds": {**self.seeds, "total": sum(self.seeds.values())}, "moved": self.moved}
