"""How the seeds of a task have ended: counts that can be added up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Counts:
    """`seeds` by outcome. Times are milliseconds since 1970, 0 for none."""

    seeds: Mapping[str, int] = field(default_factory=dict)
    first_ms: int = 0
    last_ms: int = 0

    def __add__(self, other: Counts) -> Counts:
        """The sum; of the times the first and the last."""
        starts = [count.first_ms for count in (self, other) if count.first_ms]
        names = {**self.seeds, **other.seeds}
        return Counts(
            {name: self.seeds.get(name, 0) + other.seeds.get(name, 0) for name in names},
            min(starts, default=0),
            max(self.last_ms, other.last_ms),
        )

    def fields(self) -> dict[str, Any]:
        """For JSON; `read` is the inverse."""
        return {"seeds": dict(self.seeds), "first": self.first_ms, "last": self.last_ms}

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """From JSON. Raises KeyError, TypeError, ValueError for anything else."""
        seeds = {str(name): int(count) for name, count in dict(given["seeds"]).items()}
        return cls(seeds, int(given["first"]), int(given["last"]))


NOTHING = Counts()
