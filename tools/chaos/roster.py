"""The tasks of a run, and what was asked for each of them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class ChaosTask:
    """One task; threads share it, and each only adds."""

    name: str
    seeds: list[int] = field(default_factory=list)
    is_complete: bool = False  # all its seeds are produced
    is_closed: bool = False  # or somebody was asked to close it
    is_paused: bool = False
    was_paused: bool = False
    is_cancelled: bool = False  # or somebody was asked to cancel it
    is_ended: bool = False  # its end was told

    @property
    def has_end(self) -> bool:
        """Whether its end is to be told sooner or later."""
        return self.is_closed or self.is_cancelled


class Roster:
    """All tasks by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, ChaosTask] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def task(self, name: str) -> ChaosTask:
        """This one, which is new at its first seed."""
        return self._tasks.setdefault(name, ChaosTask(name))

    def all(self) -> list[ChaosTask]:
        """In their order."""
        return list(self._tasks.values())

    def cancelled(self) -> frozenset[str]:
        """The names of those that were cancelled."""
        return frozenset(task.name for task in self.all() if task.is_cancelled)
