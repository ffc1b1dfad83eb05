"""A model of producers, processes and topics around the rules of tasks.ending.

One task. Its pages are known beforehand, with the links of each; every link is spilled, but one may be
dropped whose page the process has met already. A seed may be sent on as another message, as those are that
are parked or overtaken. Processes that are born read the log as compaction leaves it. The model knows the
truth, so it can say of an end that it was told too early, and of a count that it is wrong.
"""

from __future__ import annotations

import inspect
import pickle
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from site_spider.contracts.seed_log import Partition
from site_spider.tasks.control_log import written
from site_spider.tasks.ending import (
    Counting,
    Counts,
    EndTold,
    Fact,
    Producing,
    SeedCounts,
    TakenBack,
    Tally,
    TaskEnding,
)

OTHER = ""  # the page of a seed of another task
Step = tuple[Any, ...]
First = tuple[int, int]  # partition and offset of a producer's message


def partition(number: int) -> Partition:
    return Partition("seeds", number)


class Sent(NamedTuple):
    page: str
    is_link: bool = False
    first: First | None = None  # of a seed that was sent on


@dataclass
class Rules:
    """Which of the rules hold; a mutant changes one."""

    tells_spilled: bool = True  # a tally has the highs of what its process has spilled
    tells_met: bool = True  # and of the links that it has met
    waits_for_pages: bool = True  # before a seed is counted
    waits_for_tally: bool = True  # before a seed completes
    waits_for_left: bool = True  # the page log has what was counted as spilled, before it completes


@dataclass
class Work:
    sent: Sent
    spilled: int = 0  # links that are in the topic, or were dropped
    is_gone: bool = False  # sent on as another message
    is_logged: bool = False  # its page is in the page log
    is_done: bool = False
    has_left: bool = False  # counted as spilled, which the page log has to say
    is_complete: bool = False


@dataclass
class Share:
    """A partition that a process has, or believes to have."""

    epoch: int
    next: int
    counting: Counting
    works: dict[int, Work] = field(default_factory=dict)
    done_before: frozenset[int] = frozenset()


@dataclass
class Process:
    name: str
    ending: TaskEnding
    born_at: int  # the end of the log then
    shares: dict[int, Share] = field(default_factory=dict)
    known: dict[Partition, int] = field(default_factory=dict)  # highs of messages that it knows of
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000)))  # which can be pickled
    telling: EndTold | None = None  # on its way into the log
    retracting: list[TakenBack] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)  # of the log as it was born


@dataclass
class Sender:
    """A producer: begins, sends its pages, names its highs, and takes back the words that it carries on."""

    name: str
    pages: tuple[str, ...]
    closes: bool
    said_open: bool = False
    sent: int = 0
    carries: list[TakenBack] | None = None  # when it has read the log
    said_closed: bool = False
    last_word: Producing | None = None
    highs: dict[Partition, int] = field(default_factory=dict)


class World:
    def __init__(
        self,
        links: dict[str, tuple[str, ...]],
        senders: list[Sender],
        partitions: int,
        processes: int,
        rules: Rules,
        dead: frozenset[str] = frozenset(),
    ) -> None:
        self.links, self.senders, self.rules = links, senders, rules
        self.dead = dead  # pages that become dead letters, and are put back once
        self.put_back: set[str] = set()
        self.topic: list[list[Sent]] = [[] for _ in range(partitions)]
        self.log: list[tuple[bytes, Fact]] = []
        self.pages: set[str] = set()  # the page log, each page once
        self.left: set[First] = set()  # and what was counted as spilled
        self.came_back: dict[First, str] = {}  # and how it ended as another message
        self.committed: list[set[int]] = [set() for _ in range(partitions)]
        self.owner: list[tuple[str, int]] = [("", 0)] * partitions  # name and epoch
        self.born = 0
        self.crashes = self.moves = self.additions = self.hops = 0  # that may still happen
        self.reads_at_once = False  # fewer orders; else a process may be behind with the log
        self.processes: list[Process] = [self._process() for _ in range(processes)]
        self.faults: list[str] = []
        self.truth = TaskEnding()  # reads everything at once
        for number in range(partitions):
            self._give(number, self.processes[number % processes])

    # --- what may happen ------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        for number, sender in enumerate(self.senders):
            if sender.said_closed and sender.carries:
                yield ("take back", number)
            elif not sender.said_closed:
                if sender.said_open and sender.sent < len(sender.pages):
                    yield from (("send", number, into) for into in range(len(self.topic)))
                elif sender.said_open and sender.last_word is None:
                    yield ("carry on", number)
                else:
                    yield ("say", number)
        for process in self.processes:
            yield from self._steps_of(process)
        if self.crashes:
            yield from (("crash", process.name) for process in self.processes)
        if self.moves and len(self.processes) > 1:
            yield from (("move", number) for number in range(len(self.topic)))
        if self.additions:
            yield ("add",)

    def _steps_of(self, process: Process) -> Iterator[Step]:
        is_behind = process.unread or process.ending.read_to < len(self.log)
        if is_behind or self._has_counted_ones(process):
            yield ("read", process.name)
        is_idle = not is_behind and process.telling is None
        if is_idle and process.ending.is_over and not process.ending.is_told:
            yield ("tell", process.name)
        if process.telling is not None:
            yield ("write end", process.name)
        if process.retracting:
            yield ("retract", process.name)
        yield from self._steps_of_shares(process)
        if self.dead - self.put_back and process is self.processes[0]:
            dead = {self.topic[number][offset].page for number, done in enumerate(self.committed) for offset in done}
            yield from (("put back", page) for page in sorted(dead & self.dead - self.put_back))

    def _steps_of_shares(self, process: Process) -> Iterator[Step]:
        for number, share in process.shares.items():
            if share.next < len(self.topic[number]):
                yield ("poll", process.name, number)
            for offset, work in share.works.items():
                yield from self._steps_of_work(process, number, offset, work)
            if self._tally(process, number) is not None:
                yield ("tally", process.name, number)
            if any(work.is_complete for work in share.works.values()):
                yield ("commit", process.name, number)

    def _steps_of_work(self, process: Process, number: int, offset: int, work: Work) -> Iterator[Step]:
        links = self.links.get(work.sent.page, ())
        if work.has_left and not work.is_complete:
            yield ("log left", process.name, number, offset)
        if work.is_done:
            return
        if work.spilled < len(links) and not work.is_gone:
            yield from (("spill", process.name, number, offset, into) for into in range(len(self.topic)))
            if any(
                links[work.spilled] == met.sent.page for one in process.shares.values() for met in one.works.values()
            ):
                yield ("drop", process.name, number, offset)
        if self.hops and not (work.spilled or work.is_gone or work.is_logged or work.sent.is_link):
            yield from (("hop", process.name, number, offset, into) for into in range(len(self.topic)))
        if work.is_gone or (work.spilled == len(links) and (work.is_logged or not self.rules.waits_for_pages)):
            yield ("end", process.name, number, offset)
        if work.spilled == len(links) and not work.is_logged and not work.is_gone:
            yield ("log page", process.name, number, offset)

    def do(self, step: Step) -> None:
        getattr(self, "_do_" + step[0].replace(" ", "_"))(*step[1:])

    # --- producers ------------------------------------------------------------------------------

    def _do_say(self, number: int) -> None:
        sender = self.senders[number]
        if sender.said_open:
            sender.said_closed = True
            assert sender.last_word is not None
            self._append(sender.last_word)
        else:
            sender.said_open = True
            self._append(Producing(sender.name, is_open=True))

    def _do_carry_on(self, number: int) -> None:
        """It reads the log; others may say more before it says the last."""
        sender = self.senders[number]
        ending = self._reader()
        said = Producing(sender.name, is_open=False, closes=sender.closes, highs=dict(sender.highs))
        sender.last_word = ending.carried_on(said)
        words = ending.carried_words(ending.read_to)
        sender.carries = [TakenBack(sender.name, is_open=True), *words]

    def _do_take_back(self, number: int) -> None:
        sender = self.senders[number]
        carries, sender.carries = sender.carries or [], None
        for gone in carries:
            self._append(gone)

    def _do_send(self, number: int, into: int) -> None:
        sender = self.senders[number]
        position = self._put(into, Sent(sender.pages[sender.sent]))
        sender.sent += 1
        sender.highs[partition(into)] = max(position, sender.highs.get(partition(into), 0))

    def _do_put_back(self, page: str) -> None:
        self.put_back.add(page)
        self.senders.append(Sender(f"replay-{page}", (page,), closes=True))

    # --- processes ------------------------------------------------------------------------------

    def _do_read(self, name: str) -> None:
        process = self._named(name)
        unread, process.unread = process.unread, []
        for offset in unread:
            process.ending.read(offset, self.log[offset][1])
        process.ending.read_to = max(process.ending.read_to, process.born_at)
        for offset in range(process.ending.read_to, len(self.log)):
            process.ending.read(offset, self.log[offset][1])
        for number, share in process.shares.items():
            counted, tally = (share.counting.read(process.ending), process.ending.tallies.get(partition(number)))
            for offset in counted:
                if offset in share.works:  # a mutant may have committed it
                    work = share.works[offset]
                    work.has_left = tally is not None and offset in tally.left
                    work.is_complete = not (work.has_left and self.rules.waits_for_left)
            stale = share.counting.stale(process.ending)
            process.retracting += [TakenBack(writer, partition(number)) for writer in stale]

    def _do_retract(self, name: str) -> None:
        process = self._named(name)
        gone, process.retracting = process.retracting, []
        for each in gone:
            self._append(each)
        self._check_counts()

    def _has_counted_ones(self, process: Process) -> bool:
        return any(pickle.loads(pickle.dumps(share.counting)).read(process.ending) for share in process.shares.values())

    def _do_poll(self, name: str, number: int) -> None:
        share = self._named(name).shares[number]
        offset, share.next = share.next, share.next + 1
        sent = self.topic[number][offset]
        if offset in share.done_before:
            return
        is_other = sent.page == OTHER
        if not is_other:
            share.counting.arrived(offset)
        if self.rules.tells_met and (sent.is_link or sent.first is not None):
            self._knows(self._named(name), number, offset + 1)
        share.works[offset] = Work(sent, is_done=is_other, is_complete=is_other)

    def _knows(self, process: Process, number: int, position: int) -> None:
        process.known[partition(number)] = max(position, process.known.get(partition(number), 0))

    def _do_spill(self, name: str, number: int, offset: int, into: int) -> None:
        process = self._named(name)
        work = process.shares[number].works[offset]
        position = self._put(into, Sent(self.links[work.sent.page][work.spilled], is_link=True))
        if self.rules.tells_spilled:
            self._knows(process, into, position)
        work.spilled += 1

    def _do_hop(self, name: str, number: int, offset: int, into: int) -> None:
        self.hops -= 1
        process = self._named(name)
        work = process.shares[number].works[offset]
        position = self._put(into, Sent(work.sent.page, first=work.sent.first or (number, offset)))
        if self.rules.tells_spilled:
            self._knows(process, into, position)
        work.is_gone = True

    def _do_drop(self, name: str, number: int, offset: int) -> None:
        self._named(name).shares[number].works[offset].spilled += 1

    def _do_log_page(self, name: str, number: int, offset: int) -> None:
        work = self._named(name).shares[number].works[offset]
        self.pages.add(work.sent.page)
        if work.sent.first is not None:
            self.came_back[work.sent.first] = self._outcome(work)
        work.is_logged = True

    def _do_log_left(self, name: str, number: int, offset: int) -> None:
        self.left.add((number, offset))
        self._named(name).shares[number].works[offset].is_complete = True

    def _outcome(self, work: Work) -> str:
        if work.is_gone:
            return "spilled"
        return "dead_letter" if work.sent.page in self.dead - self.put_back else "result"

    def _do_end(self, name: str, number: int, offset: int) -> None:
        share = self._named(name).shares[number]
        work = share.works[offset]
        work.is_done = True
        prefix = "link:" if work.sent.is_link else "" if work.sent.first is None else "again:"
        share.counting.done(offset, Counts({prefix + self._outcome(work): 1}))
        if not self.rules.waits_for_tally:
            work.is_complete = True

    def _tally(self, process: Process, number: int) -> Tally | None:
        copy = pickle.loads(pickle.dumps(process.shares[number].counting))
        return self._next_tally(copy, process, number)

    def _next_tally(self, counting: Counting, process: Process, number: int) -> Tally | None:
        ending = process.ending
        tells = ending.highs.get(partition(number), 0) > ending.passed(partition(number))
        position = process.shares[number].next
        return counting.next_tally(ending, position, process.known, tells_passed=tells)

    def _do_tally(self, name: str, number: int) -> None:
        process = self._named(name)
        tally = self._next_tally(process.shares[number].counting, process, number)
        assert tally is not None
        self._append(tally)
        self._check_counts()

    def _do_commit(self, name: str, number: int) -> None:
        process = self._named(name)
        share = process.shares[number]
        if self.owner[number] != (name, share.epoch):
            del process.shares[number]  # it learns that it has lost the partition
            return
        complete = {offset for offset, work in share.works.items() if work.is_complete}
        self.committed[number] |= complete
        share.counting.committed(complete.__contains__)
        for offset in complete:
            del share.works[offset]

    def _do_tell(self, name: str) -> None:
        process = self._named(name)
        ending = process.ending
        self._check_end(ending)
        process.telling = EndTold(ending.generation, ending.read_to, {})

    def _do_write_end(self, name: str) -> None:
        process = self._named(name)
        assert process.telling is not None
        self._append(process.telling)
        process.retracting += self._reader().carried_words(process.telling.upto)
        process.telling = None

    # --- trouble --------------------------------------------------------------------------------

    def _do_crash(self, name: str) -> None:
        self.crashes -= 1
        self.processes = [process for process in self.processes if process.name != name]
        self.processes.append(self._process())
        for number, (owner, _) in enumerate(self.owner):
            if owner == name:
                self._give(number, self.processes[-1])

    def _do_move(self, number: int) -> None:
        self.moves -= 1
        others = [process for process in self.processes if process.name != self.owner[number][0]]
        if number in others[0].shares:
            del others[0].shares[number]  # a zombie gets it back
        self._give(number, others[0])

    def _do_add(self) -> None:
        self.additions -= 1
        self.topic.append([])
        self.committed.append(set())
        self.owner.append(("", 0))
        self._give(len(self.topic) - 1, self.processes[0])

    # --- the truth ------------------------------------------------------------------------------

    def _check_end(self, ending: TaskEnding) -> None:
        facts = [fact for _, fact in self.log]
        told = max((fact.upto for fact in facts if isinstance(fact, EndTold)), default=0)
        words = [fact for fact in facts[told : ending.read_to] if isinstance(fact, Producing)]
        if not any(word.closes for word in words) and not ending.is_told:
            self.faults.append("the end was told of a task that nobody closed")
        done = {self.topic[number][offset].page for number, done in enumerate(self.committed) for offset in done}
        begun_since = {fact.producer for fact in facts[ending.read_to :] if isinstance(fact, Producing)}
        senders = [s for s in self.senders if s.said_open and s.name not in begun_since]
        wanted = [page for sender in senders for page in sender.pages]
        while wanted:
            page = wanted.pop()
            if page not in done:
                self.faults.append(f"{page} was not done when the end was told")
            if page not in self.pages:
                self.faults.append(f"{page} was not counted when the end was told")
            wanted += self.links.get(page, ())
        for sender in senders:
            for where, high in sender.highs.items():
                missing = set(range(high)) - self.committed[where.number]
                if any(self.topic[where.number][offset].page in sender.pages for offset in missing):
                    self.faults.append(f"a seed of {sender.name} was not committed when the end was told")
        for where, tally in ending.tallies.items():
            mine = {offset for offset, sent in enumerate(self.topic[where.number]) if sent.page != OTHER}
            if any(offset < tally.passed and not tally.has_counted(offset) for offset in mine):
                self.faults.append("a seed is passed and was not counted")
        self._check_seeds(ending, is_last=not begun_since)

    def _check_seeds(self, ending: TaskEnding, *, is_last: bool) -> None:
        """Each message of a producer is told once, by how it ended."""
        ends = [self.came_back.get(first, "spilled") for first in sorted(self.left)]
        seeds = SeedCounts.of(ending.counts().seeds, {name: ends.count(name) for name in ends}).seeds
        counted = sum(
            not sent.is_link and sent.first is None and sent.page != OTHER and tally.has_counted(offset)
            for where, tally in ending.tallies.items()
            for offset, sent in enumerate(self.topic[where.number])
        )
        if is_last and (sum(seeds.values()) != counted or "spilled" in seeds):
            self.faults.append(f"{counted} seeds were told as {seeds}")

    def _check_counts(self) -> None:
        late = self._reader()
        for where, tally in self.truth.tallies.items():
            sent = self.topic[where.number]
            counted = sum(one.page != OTHER and tally.has_counted(at) for at, one in enumerate(sent))
            if counted != sum(tally.counts.seeds.values()):
                self.faults.append(f"{counted} seeds were counted as {tally.counts.seeds}")
            if late.tallies.get(where) != tally:
                self.faults.append("who reads the log now has another tally than who has followed it")

    def _kept(self) -> list[int]:
        """The last record of each key, if it was not taken back."""
        last = {key: offset for offset, (key, _) in enumerate(self.log)}
        return sorted(at for at in last.values() if not isinstance(self.log[at][1], TakenBack))

    # --- parts ----------------------------------------------------------------------------------

    def _reader(self) -> TaskEnding:
        """Of what compaction leaves of the log."""
        ending = TaskEnding()
        for offset in self._kept():
            ending.read(offset, self.log[offset][1])
        ending.read_to = len(self.log)
        return ending

    def _process(self) -> Process:
        """It has read half of the log."""
        self.born += 1
        kept = [] if self.reads_at_once else self._kept()
        process = Process(f"p{self.born}", TaskEnding() if kept else self._reader(), born_at=len(self.log))
        process.unread = kept[len(kept) // 2 :]
        for offset in kept[: len(kept) // 2]:
            process.ending.read(offset, self.log[offset][1])
        return process

    def _named(self, name: str) -> Process:
        return next(process for process in self.processes if process.name == name)

    def _give(self, number: int, process: Process) -> None:
        epoch = self.owner[number][1] + 1
        self.owner[number] = process.name, epoch
        done = self.committed[number]
        start = next(offset for offset in range(len(self.topic[number]) + 1) if offset not in done)
        counting = Counting(partition(number), f"{process.name}.{epoch}", process.numbers)
        process.shares[number] = Share(epoch, start, counting, done_before=frozenset(done))

    def _put(self, into: int, sent: Sent) -> int:
        self.topic[into].append(sent)
        return len(self.topic[into])

    def _append(self, fact: Fact) -> None:
        self.truth.read(len(self.log), fact)
        self.log.append((written("t", fact)[0], fact))
        for process in self.processes if self.reads_at_once else ():
            self._do_read(process.name)

    def key(self) -> bytes:
        return pickle.dumps({**self.__dict__, "born": 0})


def run_on(world: World, choose: Callable[[list[Step]], Step], most: int) -> None:
    """So many steps, or until nothing can happen."""
    for _ in range(most):
        steps = list(world.steps())
        if not steps or world.faults:
            return
        world.do(choose(steps))


def settle(world: World, most: int = 5_000) -> None:
    """No more trouble: everything that can happen does, in turn. Notes a fault when the end is not told."""
    world.crashes = world.moves = world.additions = world.hops = 0
    turn = 0
    while (steps := list(world.steps())) and not world.faults:
        turn += 1
        if turn > most:
            world.faults.append("it does not come to rest")
            return
        world.do(steps[turn % len(steps)])
    facts = [fact for _, fact in world.log]
    told = max((fact.upto for fact in facts if isinstance(fact, EndTold)), default=0)
    if not world.faults and any(isinstance(fact, Producing) and fact.closes for fact in facts[told:]):
        world.faults.append("the end was never told")


# --- faults that are planted for a while, as a change of a function's text --------------------------------

Mutant = tuple[Any, str, str]  # a function or property, a part of its text, and what stands there instead


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """With this fault, for whoever has the function by now."""
    where, right, wrong = mutant
    function = getattr(where, "fget", where)
    source = inspect.getsource(function)
    assert right in source, f"{right!r} is not in {function.__qualname__}"
    made: dict[str, Any] = {}
    exec(textwrap.dedent(source.replace(right, wrong, 1)), function.__globals__, made)
    code = function.__code__
    function.__code__ = getattr(made[function.__name__], "fget", made[function.__name__]).__code__
    try:
        yield
    finally:
        function.__code__ = code
