"""What became of the seeds of a task: counts that can be added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

_MOST_REASONS = 50
_OTHER = "other"


@dataclass(frozen=True, slots=True)
class Counts:
    """`seeds` by outcome, `reasons` of failures by name. Times are milliseconds since 1970, 0 for none."""

    seeds: Mapping[str, int] = field(default_factory=dict)
    pages: int = 0
    failures: int = 0
    bytes: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    first_ms: int = 0
    last_ms: int = 0

    def __add__(self, other: Counts) -> Counts:
        """The sum; of the times the first and the last."""
        starts = [count.first_ms for count in (self, other) if count.first_ms]
        return Counts(
            _sum(self.seeds, other.seeds),
            self.pages + other.pages,
            self.failures + other.failures,
            self.bytes + other.bytes,
            _bounded(_sum(self.reasons, other.reasons)),
            min(starts, default=0),
            max(self.last_ms, other.last_ms),
        )

    def fields(self) -> dict[str, Any]:
        """For JSON; `read` is the inverse."""
        return {
            "seeds": dict(self.seeds),
            "pages": self.pages,
            "failures": self.failures,
            "bytes": self.bytes,
            "reasons": dict(self.reasons),
            "first": self.first_ms,
            "last": self.last_ms,
        }

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """From JSON. Raises KeyError, TypeError, ValueError for anything else."""
        numbers = [int(given[name]) for name in ("pages", "failures", "bytes", "first", "last")]
        pages, failures, size_bytes, first_ms, last_ms = numbers
        seeds, reasons = (
            {str(name): int(count) for name, count in dict(given[part]).items()}
            for part in ("seeds", "reasons")
        )
        return cls(seeds, pages, failures, size_bytes, reasons, first_ms, last_ms)


NOTHING = Counts()


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}


def _bounded(reasons: dict[str, int]) -> dict[str, int]:
    """The names seen first; the others count as one."""
    if len(reasons) <= _MOST_REASONS:
        return reasons
    kept = [name for name in reasons if name != _OTHER][: _MOST_REASONS - 1]
    bounded = {name: reasons[name] for name in kept}
    return {**bounded, _OTHER: sum(reasons.values()) - sum(bounded.values())}
