"""The flows of a crawl: what one task has waiting in one tier, with weight and rate."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from site_spider.bounded_dict import BoundedDict
from site_spider.frontier.waiter import Waiter
from site_spider.frontier.waiting_link import WaitingLink
from site_spider.intake.seed_queue import Waiting
from site_spider.ledger import completion

WeightOf = Callable[[str | None], float]  # of a task; None: of what has none
RateOf = Callable[[str | None], float | None]  # requests a second over the whole group; None: no limit

_BURST_SECONDS = 0.5  # of its rate that a task may catch up with
_LOOK_SECONDS = 1.0  # a rate or a share may have changed
_LEAST_RATE = 1e-6
_MOST_TASKS = 10_000


class TaskFlow(NamedTuple):
    """What one task has waiting in one tier."""

    task_id: str | None
    topic: str


def flow_of(waiter: Waiter) -> TaskFlow | None:
    """None for what no seed stands behind."""
    if isinstance(waiter, Waiting):
        return TaskFlow(waiter.seed.task_id, waiter.entry.partition.topic)
    job = waiter.parent if isinstance(waiter, WaitingLink) else completion.job_of(waiter)
    if job is None:
        return None
    root = job.root
    return TaskFlow(root.seed.task_id, root.seed_entry.partition.topic)


class TaskWeights:
    """The weight of a task times that of its tier."""

    def __init__(self, tiers: Mapping[str, float], weight_of: WeightOf) -> None:
        self._tiers = tiers
        self._weight_of = weight_of

    def __call__(self, flow: Hashable) -> float:
        """Asked at each service, so that a change counts for what waits."""
        if not isinstance(flow, TaskFlow):
            return 1.0
        return self._tiers.get(flow.topic, 1.0) * self._weight_of(flow.task_id)


class _Bucket(NamedTuple):
    """A token bucket: what a task may do, and when that was so."""

    tokens: float
    at: float


@dataclass(slots=True)
class RateUse:
    """What a task with a rate does here."""

    begun: int = 0  # requests
    begun_at: float = -inf
    held_at: float = -inf  # when the rate held something back

    def begin(self, now: float) -> None:
        """One more."""
        self.begun, self.begun_at = self.begun + 1, now

    def hold(self, now: float) -> None:
        """One more would."""
        self.held_at = now


class TaskRates:
    """A token bucket a task, filled with this process' part of the rate.

    That is what `share` said last, or what its share of the partitions gives it.
    """

    def __init__(self, rate_of: RateOf, share_of: Callable[[str], float]) -> None:
        self._rate_of = rate_of
        self._share_of = share_of
        self._buckets: BoundedDict[str | None, _Bucket] = BoundedDict(_MOST_TASKS)
        self._uses: BoundedDict[str, RateUse] = BoundedDict(_MOST_TASKS)
        self._parts: dict[str, float] = {}  # of rates, in requests a second

    def active(self, since: float) -> list[str]:
        """The tasks with a rate of which something began, or was held back, since then."""
        return [task_id for task_id, use in self._uses.items() if max(use.begun_at, use.held_at) >= since]

    def use(self, task_id: str) -> RateUse:
        """What a task does here; to be read only."""
        return self._uses.get(task_id) or RateUse()

    def share(self, task_id: str, per_second: float | None) -> None:
        """This process' part of the rate of a task, from now on; None: by its partitions."""
        if per_second is None:
            self._parts.pop(task_id, None)
        else:
            self._parts[task_id] = per_second

    def _used(self, key: Hashable) -> RateUse:
        task_id = str(key.task_id) if isinstance(key, TaskFlow) else ""
        use = self._uses.get(task_id)
        if use is None:
            use = self._uses[task_id] = RateUse()
        return use

    def free_at(self, key: Hashable, now: float) -> float:
        """When the next request of a task may begin; to be asked again then."""
        rate = self._rate(key)
        if rate is None:
            return now
        tokens = self._tokens(key, rate, now)
        if tokens < 1.0:
            self._used(key).hold(now)
        return now if tokens >= 1.0 else now + min(_LOOK_SECONDS, (1.0 - tokens) / rate + 1e-6)

    def spend(self, key: Hashable, now: float) -> None:
        """One has begun."""
        rate = self._rate(key)
        if rate is not None and isinstance(key, TaskFlow):
            self._buckets[key.task_id] = _Bucket(self._tokens(key, rate, now) - 1.0, now)
            self._used(key).begin(now)

    def _rate(self, key: Hashable) -> float | None:
        rate = self._rate_of(key.task_id) if isinstance(key, TaskFlow) else None
        if rate is None or not isinstance(key, TaskFlow):
            return None
        part = self._parts.get(key.task_id) if key.task_id is not None else None
        return max(_LEAST_RATE, rate * self._share_of(key.topic) if part is None else min(part, rate))

    def _tokens(self, key: Hashable, rate: float, now: float) -> float:
        assert isinstance(key, TaskFlow)
        bucket = self._buckets.get(key.task_id)
        if bucket is None:
            return 1.0
        return min(1.0 + rate * _BURST_SECONDS, bucket.tokens + (now - bucket.at) * rate)
