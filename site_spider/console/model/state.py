"""What the console knows of one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Counts = Mapping[str, int]
Seconds = Mapping[str, float]


class HostState(NamedTuple):
    """A host of which something waits."""

    host: str
    waiting: int
    out: int
    reason: str
    next_in_seconds: float | None


class SinkState(NamedTuple):
    """A sink as one process sees it."""

    name: str
    available: bool
    backlog: int
    backlog_bytes: int
    limit_bytes: int
    last_accept_at: float | None


class TaskFigures(NamedTuple):
    """What one process did for a task; `outcomes` and `reasons` count its seeds and failures."""

    task_id: str
    pages: int
    bytes: int
    outcomes: Counts
    reasons: Counts


class FailureState(NamedTuple):
    """One page that failed."""

    at: float
    url: str
    host: str
    task_id: str
    reason: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """One snapshot, read and checked. Counts are totals since the start; times are Unix times."""

    name: str
    at: float
    started_at: float
    machine: str = ""
    pid: int = 0
    slot: str = ""
    group: str = ""
    topic: str = ""
    spider: str = ""
    interval_seconds: float = 10.0
    is_ended: bool = False  # the last snapshot of a process that has closed
    consumed: int = 0
    in_flight: int = 0
    handed_back: int = 0
    outcomes: Counts = field(default_factory=dict)
    pages: int = 0
    bytes: int = 0
    failures: Counts = field(default_factory=dict)  # pages by reason
    queues: Counts = field(default_factory=dict)
    waiting: int = 0  # requests
    host_reasons: Counts = field(default_factory=dict)
    hosts: tuple[HostState, ...] = ()
    paused: Seconds = field(default_factory=dict)  # by cause
    pausing: tuple[str, ...] = ()  # the causes that hold it now
    pause_said: str = ""
    log_is_away: bool = False
    sinks: tuple[SinkState, ...] = ()
    tasks: tuple[TaskFigures, ...] = ()
    examples: tuple[FailureState, ...] = ()
    partitions: tuple[str, ...] = ()  # topic/number
    requests_out: int = 0
    memory_bytes: int = 0
    loop_lag_seconds: float = 0.0
    clock_ahead_seconds: float = 0.0  # of the broker's clock; negative when it is behind

    @property
    def completed(self) -> int:
        """Seeds that ended, in whatever way."""
        return sum(self.outcomes.values())

    @property
    def missing(self) -> int:
        """Seeds consumed and nowhere to be found: 0 unless there is a bug (rule 10)."""
        return self.consumed - self.completed - self.in_flight
