"""How many more seeds may be polled, and which partitions are paused."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from site_spider.contracts.seed_log import Message, Partition
from site_spider.errors import SeedError
from site_spider.ledger.ledger import Ledger, SeedInFlight
from site_spider.outage import Outage
from site_spider.results.commits import Commits
from site_spider.results.pipeline import Sinks
from site_spider.seed.fields import MAX_MESSAGE_BYTES
from site_spider.seed.seed import Seed, seed_bytes

# --- load: how much a crawl holds in memory, against its limits ------------------------------------------
# Three things count: requests that wait, seeds in flight (their messages stay in memory until they are
# complete), and what is on its way to the seed topic and not acknowledged there.
#
# Theory of operation. At a limit nothing is dropped and nothing stands still that would lower the load:
# links go to the seed topic instead of waiting here (`is_full`), no more seeds are polled (`seed_room`)
# until a quarter is free again, and when the topic takes no links, no more pages are asked for
# (`may_download`). What waits is served all the while, so a process whose whole memory is links of open
# seeds makes progress.

MAX_SEED_BYTES = 3 * MAX_MESSAGE_BYTES  # a message, and its body in an encoding that takes twice as much

_LOAD_FREE_SHARE = 0.25  # of a limit, before seeds are polled again
_MOST_SPILLING = 5_000  # on their way to the topic; beyond it no page is asked for
_MOST_SPILLING_BYTES = 32_000_000


class Load:
    """The sums; hears of seeds as a SeedListener. The event loop changes them, any thread may read."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self._is_full_for_seeds = False
        self.requests = 0
        self.request_bytes = 0
        self.seed_bytes = 0
        self.spilling = 0
        self.spilling_bytes = 0
        self.may_download = True  # False while the seed topic does not take what is sent to it

    @property
    def bytes(self) -> int:
        """All of it, as estimated."""
        return self.request_bytes + self.seed_bytes + self.spilling_bytes

    @property
    def is_full(self) -> bool:
        """Whether links go to the seed topic rather than wait here."""
        return self.requests >= self.max_requests or self.bytes >= self.max_bytes

    def seed_capacity(self) -> int:
        """How many seeds of any size may be polled at once into an empty memory."""
        return max(1, self.max_bytes // MAX_SEED_BYTES)

    def seed_room(self) -> int:
        """How many seeds of any size may be polled now."""
        if self._is_full_for_seeds or self.is_full:
            return 0
        return max(1, (self.max_bytes - self.bytes) // MAX_SEED_BYTES)

    def look(self) -> None:
        """See whether seeds may be polled again; to be called now and then."""
        if self.is_full:
            self._is_full_for_seeds = True
        elif self._is_full_for_seeds:
            most = 1 - _LOAD_FREE_SHARE
            self._is_full_for_seeds = self.requests > most * self.max_requests or self.bytes > most * self.max_bytes

    def count_request(self, by: int, size_bytes: int) -> None:
        """A request waits (1), or does no more (-1)."""
        self.requests += by
        self.request_bytes += by * size_bytes

    def arrived(self, entry: SeedInFlight, message: Message, seed: Seed | SeedError) -> None:
        entry.size_bytes = size_bytes = seed_bytes(message, seed)
        self.seed_bytes += size_bytes

    def ended(self, entry: SeedInFlight) -> None:
        self.seed_bytes -= entry.size_bytes

    def fenced(self, entry: SeedInFlight) -> None:
        self.ended(entry)

    def count_sending(self, by: int, size_bytes: int) -> None:
        """A message is on its way to the seed topic (1), or has arrived, or cannot (-1)."""
        self.spilling += by
        self.spilling_bytes += by * size_bytes
        self.may_download = self.spilling < _MOST_SPILLING and self.spilling_bytes < _MOST_SPILLING_BYTES


# --- tier shares: how many seeds of each tier may be in flight -------------------------------------------
# Seeds are in flight long after they were polled, and cannot be given back. Were they polled wherever there
# are some, the tier with the largest backlog would take all that may be in flight, and the others wait for
# it. So each tier has a share by its weight, of those of which this process has partitions. Half of what a
# tier leaves unused is lent to the others; the other half stays free, so that it can begin at once.

_LENT_SHARE = 1 / 2
_TIER_RESUME_SHARE = 1 / 4  # of its own share free again, before a tier goes on
LEAST = 8  # seeds of a tier, also when memory is full or all that may be in flight is taken


class TierShares:
    """Remembers who has too many."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._over: frozenset[str] = frozenset()

    def room(self, in_flight: Mapping[str, int], most: int) -> dict[str, int]:
        """How many more of each tier may be polled; 0 of those that have too many.

        `in_flight` names the tiers of which partitions are assigned.
        """
        own = self._own(in_flight, most)
        unused = {tier: max(0.0, own[tier] - count) for tier, count in in_flight.items()}
        borrowed = sum(max(0.0, count - own[tier]) for tier, count in in_flight.items())
        lent = _LENT_SHARE * sum(unused.values())
        room = {tier: int(free + max(0.0, lent - _LENT_SHARE * free - borrowed)) for tier, free in unused.items()}
        self._over = frozenset(
            tier
            for tier, free in room.items()
            if free < (max(1.0, _TIER_RESUME_SHARE * own[tier]) if tier in self._over else 1.0)
        )
        return {tier: 0 if tier in self._over else free for tier, free in room.items()}

    def least(self, in_flight: Mapping[str, int], most: int) -> dict[str, int]:
        """How many more of each may be polled where there is no room any more."""
        own = self._own(in_flight, most)
        return {tier: max(0, min(LEAST, int(own[tier])) - count) for tier, count in in_flight.items()}

    def _own(self, tiers: Mapping[str, int], most: int) -> dict[str, float]:
        whole = sum(self._weights[tier] for tier in tiers)
        return {tier: max(1.0, most * self._weights[tier] / whole) for tier in tiers}


# --- poll room: how many seeds may be polled now, and of which partitions none ---------------------------
# Few seeds in flight are enough while there is always one that can be downloaded, and few are quickly
# repeated or handed over. But seeds wait for their hosts: when nothing of what was polled can be served,
# those of other hosts may lie behind them. And tasks share only what was polled: while there are tasks, seeds
# of another may lie behind those that fill the limit. So it goes up a step whenever either is said, as far as
# the setting allows, and comes down as seeds complete.
#
# Seeds are keyed by host, so a slow host is one partition's. Were seeds polled wherever there are some, its
# seeds would fill the memory sooner or later, and the other partitions stand still at its pace. So once all
# that may be in flight is taken but for a reserve, a partition with more than its share is left alone, and
# the reserve is for the others.

logger = logging.getLogger(__name__)

STEP = 1_000  # seeds
_RESERVE_SHARE = 1 / 4  # of what may be in flight
_MOST_RESERVED = 1_000  # seeds
_RESUME_SHARE = 3 / 4  # of either limit: each resume costs a fetch of what was fetched before
_FULL_SHARE = 0.9
_NEARLY_FULL = 500  # seeds below the limit


def reserve(capacity: int) -> int:
    """How many seeds of what may be in flight are for partitions that have less than their share."""
    return max(1, int(min(capacity * _RESERVE_SHARE, _MOST_RESERVED)))


def _is_over(count: int, limit: float, *, was: bool) -> bool:
    return count > (limit * _RESUME_SHARE if was else limit)


class Pause(NamedTuple):
    """A cause, of the names in observe.counters, in words; both are empty when seeds are polled."""

    cause: str = ""
    said: str = ""


PAUSES_SAID: Final = {
    "sink": "too many results wait for a sink (SITE_SINK_BACKLOG_BYTES)",
    "kafka": "the seed topic does not take what is sent to it",
    "memory": "memory is short (SITE_BODIES_MAX_BYTES, SITE_MEMORY_SOFT_BYTES)",
    "stop": "partitions are handed over, or the crawl stops",
    "frontier": (
        "as many seeds are in flight as may be (SITE_MAX_SEEDS_IN_FLIGHT), or memory is full "
        "(SITE_FRONTIER_MAX_REQUESTS, SITE_FRONTIER_MAX_BYTES)"
    ),
}
LOG_IS_AWAY: Final = Pause("kafka", "the seed log does not answer, so other members may own the partitions")
# of one partition
_SPAN = Pause("span", "its slowest seed is too far behind (SITE_MAX_SPAN_OFFSETS)")
_SHARE = Pause("frontier", "too many of the seeds in flight are its")
_TIER = Pause("frontier", "its tier has its share of the seeds in flight (SITE_SEED_TOPICS)")


@dataclass(eq=False)
class PollRoom:
    """`now`, `pause`, `capacity` and `closed` are read by any thread, the rest belongs to the event loop's."""

    _ledger: Ledger
    _load: Load
    _most: int  # seeds in flight
    _span_offsets: int  # from the watermark of a partition to what is polled next
    _refusal: Callable[[], Pause]  # by anything else
    _weights: Mapping[str, float]  # by tier
    _has_tasks: Callable[[], bool] = lambda: False  # that share what is polled
    closed: Mapping[Partition, Pause] = field(default_factory=dict)  # of which no more are polled, and why
    _too_wide: Set[Partition] = frozenset()
    _greedy: frozenset[Partition] = frozenset()  # that have more than their share
    _tier_room: float = inf  # of the tier with the least, of those that go on
    _least: int = 0  # that may be polled though there is no room

    def __post_init__(self) -> None:
        self._least_limit = self._limit = min(STEP, self._most)  # seeds in flight, for now
        # of one partition: it is seen to have its share before the others' reserve is gone
        self._most_at_once = max(1, reserve(self._most) // 2)
        self._tiers = TierShares(self._weights)

    def now(self) -> int:
        """How many seeds may be polled now."""
        return 0 if self._refusal().cause else self._room()

    def pause(self) -> Pause:
        """Why none may, of any partition."""
        refusal = self._refusal()
        return refusal if refusal.cause or self._room() > 0 else Pause("frontier", PAUSES_SAID["frontier"])

    def _room(self) -> int:
        room = min(self._limit - self._ledger.in_flight, self._load.seed_room())
        return int(min(max(room, self._least), self._most_at_once, self._tier_room))

    def capacity(self) -> int:
        """How many seeds may be polled while none is in flight."""
        capacity = min(self._limit, self._load.seed_capacity(), self._most_at_once)
        return int(min(self._least or capacity, capacity, self._tier_room))

    def is_full(self) -> bool:
        """Whether about all that may be in flight is taken."""
        return self._ledger.in_flight >= _FULL_SHARE * (self._most - reserve(self._most))

    def starved(self) -> None:
        """Nothing of what waits can be downloaded now: seeds for other hosts may lie behind."""
        self._limit = max(self._limit, min(self._most, self._ledger.in_flight + STEP))

    def look(self) -> None:
        """See how far the partitions have come; to be called now and then."""
        ledger = self._ledger
        mine = ledger.partitions()
        self._limit = max(self._least_limit, min(self._limit, ledger.in_flight + STEP))
        if ledger.in_flight > self._limit - _NEARLY_FULL and self._has_tasks():
            self.starved()
        wide = frozenset(partition for partition in mine if ledger.of_partition(partition).span() >= self._span_offsets)
        for partition in wide - self._too_wide:
            logger.warning(
                "%s/%d: %d offsets are not committed behind a seed that takes long; no more are polled there "
                "until it ends (SITE_MAX_SPAN_OFFSETS)",
                *partition,
                ledger.of_partition(partition).span(),
            )
        self._too_wide = wide
        in_flight = {partition: len(ledger.of_partition(partition).open) for partition in mine}
        self._greedy = self._over_share(in_flight)
        closed = dict.fromkeys(self._over_tiers(in_flight), _TIER)
        self.closed = closed | dict.fromkeys(self._greedy, _SHARE) | dict.fromkeys(wide, _SPAN)

    def _over_share(self, in_flight: Mapping[Partition, int]) -> frozenset[Partition]:
        """The partitions of which no more are to be polled, of several that are assigned."""
        most = self._most - reserve(self._most)
        if len(in_flight) < 2 or not _is_over(sum(in_flight.values()), most, was=bool(self._greedy)):
            return frozenset()
        share = self._most / len(in_flight)
        return frozenset(
            partition for partition, count in in_flight.items() if _is_over(count, share, was=partition in self._greedy)
        )

    def _over_tiers(self, in_flight: Mapping[Partition, int]) -> Set[Partition]:
        """The partitions of tiers that have their share; of all but the least of tiers, where all is full."""
        by_tier: Counter[str] = Counter()
        for partition, count in in_flight.items():
            by_tier[partition.topic] += count
        if len(by_tier) < 2:
            self._tier_room, self._least = inf, 0
            return frozenset()
        most = self._limit
        is_full = self._load.seed_room() <= 0 or self._ledger.in_flight >= most
        room = self._tiers.room(by_tier, most)
        if is_full:
            room = self._tiers.least(by_tier, most)
        open_rooms = [count for count in room.values() if count]
        self._tier_room = min(open_rooms, default=inf)
        self._least = min(open_rooms, default=0) if is_full else 0
        return frozenset(partition for partition in in_flight if not room[partition.topic])


# --- The soft limit of memory: intake pauses above it, so that the hard one is not reached ---------------
# What is in flight goes on, and memory falls as it completes. With nothing in flight waiting would not
# help: then seeds are polled all the same, a few at a time.

_FREE_SHARE = 0.05  # of the limit, before seeds are polled again


class SoftLimit:
    """SITE_MEMORY_SOFT_BYTES; 0 turns it off. The event loop's thread looks, any may ask."""

    def __init__(self, limit_bytes: int, used_bytes: Callable[[], int | None], in_flight: Callable[[], int]) -> None:
        self.limit_bytes = limit_bytes
        self._used_bytes = used_bytes
        self._in_flight = in_flight
        self._over = Outage(
            logger,
            f"Memory is above SITE_MEMORY_SOFT_BYTES={limit_bytes}, few seeds are polled",
            f"Memory is below SITE_MEMORY_SOFT_BYTES={limit_bytes} again",
        )

    def look(self) -> None:
        """See how much is used; to be called now and then."""
        if not self.limit_bytes:
            return
        used = self._used_bytes() or 0
        if used > self.limit_bytes:
            self._over.goes_on(f"{used} bytes are used")
        elif used < self.limit_bytes * (1 - _FREE_SHARE):
            self._over.is_over()

    @property
    def keeps_intake(self) -> bool:
        return self._over.is_on and self._in_flight() > 0


# --- back pressure: whether downloads, seeds and polls may begin -----------------------------------------


@dataclass(frozen=True, eq=False)
class BackPressure:
    """Asks all that may be full, away or ending. Any thread may ask."""

    load: Load
    sinks: Sinks
    commits: Commits
    is_leaving: Callable[[], bool]  # whether partitions are
    is_stopping: Callable[[], bool]
    has_memory: Callable[[], bool]  # for more bodies
    soft_limit: SoftLimit
    has_suspects: Callable[[], bool]

    def hindrance(self) -> str:
        """What keeps downloads from beginning, of the causes of observe.counters; empty when they may."""
        if self.is_stopping() or self.is_leaving():
            return "stop"
        if not self.has_memory():
            return "memory"
        if self.commits.is_cut_off:
            return "kafka"
        if not self.sinks.are_taking():
            return "sink"
        return "" if self.load.may_download and self.commits.is_taking() else "kafka"

    def refusal(self) -> Pause:
        """Who keeps polls from beginning; empty when they may."""
        if self.has_suspects():
            return Pause("suspicion", "seeds suspected of killing the process are crawled one by one")
        if away := next((delivery.sink.name for delivery in self.sinks if not delivery.available), ""):
            return Pause("sink", f"the sink {away} is away")
        if self.commits.is_cut_off:
            return LOG_IS_AWAY
        if away := self.commits.sink_away:
            return Pause("sink", f"the sink {away} is away")
        is_short = "memory" if self.soft_limit.keeps_intake else ""
        cause = self.hindrance() or (is_short if self.may_admit() else "sink")
        return Pause(cause, PAUSES_SAID.get(cause, ""))

    def may_admit(self) -> bool:
        """Whether seeds may begin; while trees keep too many results, none is to be in their way."""
        return not self.commits.is_crowded
