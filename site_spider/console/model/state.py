"""What the console knows of one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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


class TaskState(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One snapshot, read and checked. Counts are totals since the start of the process; times are Unix times."""

    name: str
    machine: str
    pid: int
    slot: str
    group: str
    topic: str
    spider: str
    at: float
    started_at: float
    interval_seconds: float
    is_ended: bool  # the last snapshot of a process that has closed
    consumed: int
    in_flight: int
    handed_back: int
    outcomes: Counts
    pages: int
    bytes: int
    failures: Counts
    queues: Counts
    host_reasons: Counts
    hosts: tuple[HostState, ...]
    paused: Seconds  # by cause
    pausing: tuple[str, ...]  # the causes that hold it now
    sinks: tuple[SinkState, ...]
    tasks: tuple[TaskState, ...]
    examples: tuple[FailureState, ...]
    partitions: tuple[str, ...]  # topic/number
    requests_out: int = 0
    concurrency: int = 0  # the most requests that may be out; 0: not known
    memory_bytes: int = 0
    loop_lag_seconds: float = 0.0
    document: Mapping[str, Any] = field(default_factory=dict, repr=False)  # as it came, for /metrics

    @property
    def completed(self) -> int:
        """Seeds that ended, in whatever way."""
        return sum(self.outcomes.values())

    @property
    def missing(self) -> int:
        """Seeds consumed and nowhere to be found: 0 unless there is a bug (rule 10)."""
        return self.consumed - self.completed - self.in_flight

    @property
    def waiting(self) -> int:
        """Requests that wait in the queues."""
        return sum(self.queues.values())
