"""What was done to the crawl."""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.chaos.crew import Run
from tools.chaos.plan import Kind
from tools.chaos.processes import Process


@dataclass(frozen=True)
class Death:
    """One crawler that was killed."""

    run: Run
    crawler: Process
    when: float


@dataclass
class Happened:
    """All of one run."""

    deaths: list[Death] = field(default_factory=list)
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    stopped: list[Run] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    gave_up: int = 0  # runs that found a server away at their start
    seconds: float = 0  # in all
    tail_seconds: float = 0  # from the last new page to the end
