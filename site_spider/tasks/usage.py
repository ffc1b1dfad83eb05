"""What one process has done for a task, as it tells the others. Numbers only grow, but for `claimed`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from site_spider.sources.model import Part
from site_spider.tasks.record import MOST

_MOST_NAMES = 1_000  # of outcomes and of hosts
_COUNTS = (
    "claimed", "begun", "pages", "bytes", "parked", "sent_on", "links_filtered", "links_cancelled",
)  # fmt: skip


def _text(text: str) -> str:
    text.encode()  # raises ValueError for half a character
    return text


def _nothing(_: object) -> None:
    return None


Number = Annotated[int, Field(ge=0, le=MOST)]
Name = Annotated[str, AfterValidator(_text)]
Numbers = Annotated[dict[Name, Number], Field(max_length=_MOST_NAMES)]
PartitionNumber = Annotated[str, Field(pattern=r"^\d{1,9}$")]


class Usage(Part):
    """Of one process and task."""

    claimed: Number = 0  # pages of the budget that nobody else may take
    begun: Number = 0  # first attempts
    pages: Number = 0  # documents
    bytes: Number = 0  # of their responses
    parked: Number = 0  # messages
    sent_on: Number = 0  # of these: sent to the seed topic as well, because the task went on meanwhile
    links_filtered: Number = 0  # by rules and by budgets of hosts
    links_cancelled: Number = 0
    seeds: Numbers = Field(default_factory=dict)  # by outcome
    hosts: Numbers = Field(default_factory=dict)  # pages claimed of hosts, where there is a budget for them
    traps: Annotated[Any, AfterValidator(_nothing), Field(exclude=True)] = None  # as releases before wrote

    @property
    def waiting(self) -> int:
        """Messages that only the parked topic has, or had."""
        return max(0, self.parked - self.sent_on)


class Pace(Part):
    """How fast one process is with a task that has a rate."""

    used: Number = 0  # thousandths of a request a second
    is_held: bool = False  # by the rate: it could begin more

    @classmethod
    def of(cls, per_second: float, *, is_held: bool) -> Pace:
        """From a rate."""
        return cls(used=min(MOST, int(1_000 * per_second)), is_held=is_held)

    @property
    def per_second(self) -> float:
        """Requests."""
        return self.used / 1_000


class Returned(Part):
    """How far the parked messages of a task were put back; counts are of messages."""

    waited: Number = 0  # that processes had told of when all of them were last put back
    found: Number = 0  # put back since then, in work that is not at its end
    missing: Number = 0  # that processes had told of, and that are not in the topic
    offsets: dict[PartitionNumber, Number] = Field(
        default_factory=dict
    )  # of each partition: the first that was not looked at
    topic_id: Name = ""  # in which topic of this name, where the log can tell; else empty
    by: Name = ""  # who is at work; empty: nobody
    parked: dict[Name, Number] = Field(default_factory=dict)  # `waited` by process, as releases before wrote

    @property
    def cleared(self) -> int:
        """Messages that nobody has to look for any more."""
        return self.waited + self.missing + sum(self.parked.values())


NOTHING = Usage()


class Total:
    """The sum over processes, kept up as they tell; each step costs the same, however many they are."""

    def __init__(self) -> None:
        self.used = NOTHING  # without hosts
        self.waiting = 0  # parked messages
        self.hosts: dict[str, int] = {}  # to be read only
        self.of: dict[str, Usage] = {}  # by process; to be read only

    def take(self, process: str, usage: Usage | None) -> None:
        """What a process has told now; None: nothing of it counts any more."""
        before, after = self.of.get(process, NOTHING), usage or NOTHING
        if usage is None:
            self.of.pop(process, None)
        else:
            self.of[process] = usage
        counts = {
            name: getattr(self.used, name) - getattr(before, name) + getattr(after, name) for name in _COUNTS
        }
        seeds = _moved(dict(self.used.seeds), before.seeds, after.seeds)
        self.used = Usage.model_construct(
            **counts, seeds=seeds, hosts={}
        )  # sums may be larger than what one may tell
        self.waiting += after.waiting - before.waiting
        _moved(self.hosts, before.hosts, after.hosts)


def _moved(sums: dict[str, int], before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """The sums with `after` instead of `before`; names whose sum is 0 are not kept."""
    if before != after:
        for name in before.keys() | after.keys():
            if count := sums.get(name, 0) - before.get(name, 0) + after.get(name, 0):
                sums[name] = count
            else:
                sums.pop(name, None)
    return sums
