"""What was done of a seed when its partition comes back."""

from __future__ import annotations

import random
from functools import partial

import pytest
from scrapy import Request

from site_spider import meta_keys
from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.ledger import ledger as module
from site_spider.ledger.completion import Completion, Job, adopt, job_of, work_on
from site_spider.ledger.ledger import Ledger, Outcome, Repeats, SeedInFlight
from site_spider.seed.seed import parse_seed

P = Partition("seeds", 0)
OTHER = Partition("seeds", 1)


def message(offset: int = 0, value: bytes = b"seed", partition: Partition = P, at: int = 7) -> Message:
    return Message(partition, offset, b"key", value, timestamp_ms=at)


class Desk:
    """A ledger and the memory, used as the crawl uses them."""

    def __init__(self) -> None:
        self.ledger, self.repeats = Ledger(), Repeats()
        self.ledger.assign(P, None)

    def take(self, what: Message) -> SeedInFlight:
        entry = self.ledger.take(what.partition, what.offset)
        assert entry is not None
        entry.message = what
        return entry

    def end(self, entry: SeedInFlight, outcome: Outcome | None = Outcome.RESULT) -> None:
        if outcome is not None:
            self.ledger.decide(entry, outcome)
        self.ledger.release(entry)
        self.repeats.ended(entry)

    def lose(self) -> None:
        for entry in self.ledger.revoke(P):
            self.repeats.fenced(entry)
        self.repeats.left({P})
        self.ledger.assign(P, None)


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize(
    "another",
    [message(value=b"other"), message(at=8), message(offset=1), message(partition=OTHER)],
    ids=["bytes", "time", "offset", "partition"],
)
def test_another_message_is_not_taken_for_it(desk: Desk, another: Message) -> None:
    """A topic made anew has other messages at the same offsets."""
    done, open_entry = desk.take(message()), desk.take(message(5))
    desk.end(done)
    desk.lose()
    assert desk.repeats.outcome(another) is None
    moved = Message(another.partition, another.offset + 5, b"key", another.value, (), another.timestamp_ms)
    assert not desk.repeats.wait(moved, lambda _outcome: None)
    assert desk.repeats.wait(message(5), lambda _outcome: None)
    assert open_entry.holds == 1


def test_work_that_goes_on_is_not_for_a_repeat_whose_partition_has_left_in_its_turn() -> None:
    """Its results would be written over newer ones of the next owner."""
    completion, answers = Completion(Ledger()), list[Outcome | None]()
    seed = parse_seed(b'{"url": "http://h.test/"}')
    for _ in range(2):
        completion.assigned({P: None})
        entry = completion.take(message(), seed)
        assert entry is not None
        if not completion.repeats.wait(message(), answers.append):
            entry.reads(seed)
            completion.begin(request := Request(seed.url), Job(request, begun := entry))
        completion.lost([P])
    assert begun.then is None
    assert not completion.repeats.is_awaited
    completion.assigned({P: None})
    assert completion.repeats.wait(message(), answers.append)
    completion.drop(request)
    assert answers == [None]


def test_a_request_that_comes_after_the_end_of_work_whose_partition_has_left_belongs_to_it() -> None:
    """So it is dropped: the next owner does the seed, and whatever its callbacks give later."""
    completion, seed = Completion(Ledger()), parse_seed(b'{"url": "http://h.test/"}')
    completion.assigned({P: None})
    entry = completion.take(message(), seed)
    assert entry is not None
    entry.reads(seed)
    completion.begin(request := Request(seed.url), Job(request, entry))
    completion.lost([P])
    completion.drop(request)
    work_on(request)
    job = adopt(Request("http://h.test/late"), lambda _request: False)
    work_on(None)
    assert job is not None
    assert (job.entry, job.entry.live, job.entry.holds) == (entry, False, 0)


def test_a_request_with_the_meta_of_a_seed_that_has_ended_belongs_to_the_one_at_hand() -> None:
    """Also with counts of attempts: it went to no seed, and the one at hand did not wait for it."""
    completion, seed = Completion(Ledger()), parse_seed(b'{"url": "http://h.test/"}')
    completion.assigned({P: None})
    entries = [completion.take(message(offset), seed) for offset in range(2)]
    requests = []
    for entry in entries:
        assert entry is not None
        entry.reads(seed)
        completion.begin(request := Request(seed.url), Job(request, entry))
        requests.append(request)
    ended, at_hand = requests
    meta = {**ended.meta, "retry_times": 1}
    completion.end_as(meta[meta_keys.JOB].entry, Outcome.RESULT)
    work_on(at_hand)
    job = adopt(Request("http://h.test/leaf", meta=meta), lambda _request: True)
    work_on(None)
    assert job is not None
    assert (job.entry, job.parent) == (entries[1], job_of(at_hand))


def test_what_the_group_has_committed_is_remembered_no_more() -> None:
    completion = Completion(Ledger())
    completion.assigned({P: None})
    for offset in range(2):
        entry = completion.take(message(offset), parse_seed(b'{"url": "http://h.test/"}'))
        assert entry is not None
        completion.end_as(entry, Outcome.RESULT)
    completion.committed({P: Position(1), OTHER: None})
    assert [completion.repeats.outcome(message(offset)) for offset in range(2)] == [None, Outcome.RESULT]


def test_the_memory_of_partitions_that_left_is_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 2)
    for partition in (OTHER, P):
        for offset in range(2):
            entry = SeedInFlight(partition, offset, 1)
            entry.message = message(offset, partition=partition)
            entry.outcome = Outcome.RESULT
            desk.repeats.ended(entry)
    desk.repeats.left({P})
    assert desk.repeats.outcome(message(partition=OTHER)) is None
    assert desk.repeats.outcome(message()) is Outcome.RESULT


class World:
    """Seeds whose partition comes and goes: none is skipped that was not wholly done, and none is done twice."""

    def __init__(self, seed: int) -> None:
        self.chance, self.desk = random.Random(seed), Desk()
        self.end = self.next = self.committed = 0
        self.working: list[SeedInFlight] = []  # begun, whatever became of their epoch
        self.dropped: set[SeedInFlight] = set()  # some of their work was
        self.known: dict[int, Outcome] = {}  # how those ended of which all work was done here
        self.under_way: dict[int, SeedInFlight] = {}  # fenced, and all of their work goes on
        self.done: set[int] = set()

    def run(self, steps: int) -> None:
        moves = [self.produce, self.drop, self.lose, self.commit, *[self.poll, self.finish] * 3]
        for _ in range(steps):
            self.chance.choice(moves)()
            assert set(range(self.committed)) <= self.done
        while self.working or self.next < self.end:  # when all work ends and all is polled, all is done
            self.poll()
            self.finish()
        assert self.done == set(range(self.end))
        assert self.desk.ledger.in_flight == 0
        self.commit()
        assert self.desk.repeats._done == {}

    def produce(self) -> None:
        self.end += self.chance.randint(1, 3)

    def poll(self) -> None:
        if self.next >= self.end:
            return
        what = message(self.next)
        entry, self.next = self.desk.take(what), self.next + 1
        outcome = self.desk.repeats.outcome(what)
        assert outcome is self.known.get(entry.offset)
        if outcome is not None:
            self.desk.end(entry, outcome)
            return
        waits = self.desk.repeats.wait(what, partial(self.told, entry))
        assert waits == (entry.offset in self.under_way)
        if not waits:
            self.working.append(entry)

    def told(self, entry: SeedInFlight, outcome: Outcome | None) -> None:
        """What its repeat waited for has ended. Of several repeats the last one is told."""
        if not entry.live:
            return
        assert outcome is self.known.get(entry.offset)
        if outcome is None:
            self.working.append(entry)
        else:
            self.done.add(entry.offset)
            self.desk.end(entry, outcome)

    def finish(self) -> None:
        """With any outcome; none that is left to another message, which whoever had the partition may have left."""
        if not self.working:
            return
        entry = self.working.pop(self.chance.randrange(len(self.working)))
        outcome = self.chance.choice([*Outcome] if entry.live else [*Outcome, None])
        self.under_way = {at: one for at, one in self.under_way.items() if one is not entry}
        is_known = outcome not in (None, Outcome.FILTERED, Outcome.SPILLED) and entry not in self.dropped
        if outcome is not None and is_known:
            self.known[entry.offset] = outcome
        if entry.live or is_known:
            self.done.add(entry.offset)
        self.desk.end(entry, outcome)

    def drop(self) -> None:
        """Some of the work of a seed that goes on."""
        if self.under_way:
            _, entry = self.under_way.popitem()
            self.dropped.add(entry)
            self.desk.repeats.broken(entry)

    def lose(self) -> None:
        begun, goes_on = set(self.working), self.chance.random() < 0.7
        for entry in self.desk.ledger.revoke(P):
            if entry in begun and goes_on:
                self.under_way[entry.offset] = entry
                self.desk.repeats.fenced(entry)
            else:
                self.dropped.add(entry)
                self.desk.repeats.broken(entry)
        self.desk.repeats.left({P})
        self.desk.ledger.assign(P, Position(self.committed))
        self.next = self.committed

    def commit(self) -> None:
        if (position := self.desk.ledger.position(P)) is not None:
            self.committed = position.offset
            self.desk.repeats.committed(P, position.offset)
            assert not any(self.desk.repeats.outcome(message(offset)) for offset in range(self.committed))


@pytest.mark.parametrize("seed", range(100))
def test_what_was_done_is_known_and_what_goes_on_is_waited_for(seed: int) -> None:
    World(seed).run(80)
