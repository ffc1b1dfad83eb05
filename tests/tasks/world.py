"""A model of producers, processes and topics around the rule of tasks.ending and tasks.counting.

One task. Its pages are known beforehand, with the links of each; every link is spilled, but one may be
dropped whose page the process has met already. The model knows the truth, so it can say of an end that it was
told too early, and of a count that it is wrong.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from site_spider.contracts.seed_log import Partition
from site_spider.tasks.ending import Counting, Counts, EndTold, Fact, High, Producing, TaskEnding

OTHER = ""  # the page of a seed of another task
Step = tuple[Any, ...]


def partition(number: int) -> Partition:
    return Partition("seeds", number)


@dataclass
class Rules:
    """Which of the rules hold; a mutant changes one."""

    ending: type[TaskEnding] = TaskEnding
    counting: type[Counting] = Counting
    waits_for_high: bool = True  # before the parent's hold is released
    waits_for_pages: bool = True  # before a seed is counted
    waits_for_tally: bool = True  # before a seed completes
    tells_moved: bool = True  # highs of messages that it has met, before a seed is counted


@dataclass
class Work:
    """A seed in flight."""

    page: str
    spilled: int = 0  # links whose message is in the topic
    told: int = 0  # of these, those whose high is in the log
    is_logged: bool = False  # its page is in the page log
    is_done: bool = False
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
    shares: dict[int, Share] = field(default_factory=dict)
    highs: dict[int, int] = field(default_factory=dict)
    met: dict[int, int] = field(default_factory=dict)  # the highest message of a link, by partition
    noted: dict[int, int] = field(default_factory=dict)  # of these, what it has told
    telling: EndTold | None = None  # on its way into the log


@dataclass
class Sender:
    """A producer: begins, sends its pages, names its highs."""

    name: str
    pages: tuple[str, ...]
    closes: bool
    said_open: bool = False
    sent: int = 0
    said_closed: bool = False
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
        self.topic: list[list[str]] = [[] for _ in range(partitions)]
        self.log: list[Fact] = []
        self.pages: set[str] = set()  # the page log, each page once
        self.committed: list[set[int]] = [set() for _ in range(partitions)]
        self.owner: list[tuple[str, int]] = [("", 0)] * partitions  # name and epoch
        self.born = 0
        self.crashes = self.moves = self.additions = 0  # that may still happen
        self.reads_at_once = False  # fewer orders; else a process may be behind with the log
        self.processes: list[Process] = [self._process() for _ in range(processes)]
        self.faults: list[str] = []
        self.truth = rules.ending()  # reads everything at once
        for number in range(partitions):
            self._give(number, self.processes[number % processes])

    # --- what may happen ------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        for number, sender in enumerate(self.senders):
            if not sender.said_closed:
                if sender.said_open and sender.sent < len(sender.pages):
                    yield from (("send", number, into) for into in range(len(self.topic)))
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
        if process.ending.read_to < len(self.log) or self._has_counted_ones(process):
            yield ("read", process.name)
        is_idle = process.ending.read_to == len(self.log) and process.telling is None
        if is_idle and process.ending.is_over and not process.ending.is_told:
            yield ("tell", process.name)
        if process.telling is not None:
            yield ("write end", process.name)
        for number, share in process.shares.items():
            if share.next < len(self.topic[number]):
                yield ("poll", process.name, number)
            for offset, work in share.works.items():
                yield from self._steps_of_work(process, number, offset, work)
            if self._tally(process, number) is not None:
                yield ("tally", process.name, number)
            if any(work.is_complete for work in share.works.values()):
                yield ("commit", process.name, number)
        if self.dead - self.put_back and process is self.processes[0]:
            dead = {
                self.topic[number][offset] for number, done in enumerate(self.committed) for offset in done
            }
            yield from (("put back", page) for page in sorted(dead & self.dead - self.put_back))

    def _steps_of_work(self, process: Process, number: int, offset: int, work: Work) -> Iterator[Step]:
        links = self.links.get(work.page, ())
        if work.told < work.spilled:
            yield ("high", process.name, number, offset)
        elif work.spilled < len(links) and not work.is_done:
            yield from (("spill", process.name, number, offset, into) for into in range(len(self.topic)))
            if any(
                links[work.spilled] == met.page
                for one in process.shares.values()
                for met in one.works.values()
            ):
                yield ("drop", process.name, number, offset)
        waits = work.told < work.spilled and self.rules.waits_for_high
        if work.spilled == len(links) and not waits and self.rules.tells_moved and self._untold(process):
            yield ("note", process.name)
        elif work.spilled == len(links) and not waits and not work.is_done:
            if not work.is_logged:
                yield ("log page", process.name, number, offset)
            if work.is_logged or not self.rules.waits_for_pages:
                yield ("end", process.name, number, offset)

    def _untold(self, process: Process) -> dict[int, int]:
        highs = process.ending.highs
        untold = {into: met for into, met in process.met.items() if met > highs.get(partition(into), 0)}
        return {into: met for into, met in untold.items() if met > process.noted.get(into, 0)}

    def do(self, step: Step) -> None:
        getattr(self, "_do_" + step[0].replace(" ", "_"))(*step[1:])

    # --- producers ------------------------------------------------------------------------------

    def _do_say(self, number: int) -> None:
        sender = self.senders[number]
        if sender.said_open:
            sender.said_closed = True
            self._append(
                Producing(sender.name, is_open=False, closes=sender.closes, highs=dict(sender.highs))
            )
        else:
            sender.said_open = True
            self._append(Producing(sender.name, is_open=True))

    def _do_send(self, number: int, into: int) -> None:
        sender = self.senders[number]
        position = self._put(into, sender.pages[sender.sent])
        sender.sent += 1
        sender.highs[partition(into)] = max(position, sender.highs.get(partition(into), 0))

    def _do_put_back(self, page: str) -> None:
        self.put_back.add(page)
        self.senders.append(Sender(f"replay-{page}", (page,), closes=True))

    # --- processes ------------------------------------------------------------------------------

    def _do_read(self, name: str) -> None:
        process = self._named(name)
        for offset in range(process.ending.read_to, len(self.log)):
            process.ending.read(offset, self.log[offset])
        for number, share in process.shares.items():
            for offset in share.counting.read(process.ending.tallies.get(partition(number))):
                if offset in share.works:  # a mutant may have committed it
                    share.works[offset].is_complete = True

    def _has_counted_ones(self, process: Process) -> bool:
        return any(
            pickle.loads(pickle.dumps(share.counting)).read(process.ending.tallies.get(partition(number)))
            for number, share in process.shares.items()
        )

    def _do_poll(self, name: str, number: int) -> None:
        share = self._named(name).shares[number]
        offset, share.next = share.next, share.next + 1
        page = self.topic[number][offset]
        if offset in share.done_before:
            return
        process = self._named(name)
        if page != OTHER:
            share.counting.arrived(offset)
        if any(page in linked for linked in self.links.values()):
            process.met[number] = max(offset + 1, process.met.get(number, 0))
        share.works[offset] = Work(page, is_done=page == OTHER, is_complete=page == OTHER)

    def _do_spill(self, name: str, number: int, offset: int, into: int) -> None:
        process = self._named(name)
        work = process.shares[number].works[offset]
        process.highs[into] = self._put(into, self.links[work.page][work.spilled])
        work.spilled += 1

    def _do_drop(self, name: str, number: int, offset: int) -> None:
        work = self._named(name).shares[number].works[offset]
        if work.told == work.spilled:
            work.told += 1
        work.spilled += 1

    def _do_note(self, name: str) -> None:
        process = self._named(name)
        for into, position in self._untold(process).items():
            self._append(High(partition(into), name, position))
            process.noted[into] = position

    def _do_high(self, name: str, number: int, offset: int) -> None:
        process = self._named(name)
        work = process.shares[number].works[offset]
        for into, high in sorted(process.highs.items()):
            self._append(High(partition(into), name, high))
        work.told = work.spilled

    def _do_log_page(self, name: str, number: int, offset: int) -> None:
        work = self._named(name).shares[number].works[offset]
        self.pages.add(work.page)
        work.is_logged = True

    def _do_end(self, name: str, number: int, offset: int) -> None:
        share = self._named(name).shares[number]
        work = share.works[offset]
        work.is_done = True
        outcome = "dead_letter" if work.page in self.dead - self.put_back else "result"
        share.counting.done(offset, Counts({outcome: 1}))
        if not self.rules.waits_for_tally:
            work.is_complete = True

    def _tally(self, process: Process, number: int) -> Any:
        share = process.shares[number]
        counting = pickle.loads(pickle.dumps(share.counting))
        return self._next_tally(counting, process, number)

    def _next_tally(self, counting: Counting, process: Process, number: int) -> Any:
        ending, share = process.ending, process.shares[number]
        tells = ending.highs.get(partition(number), 0) > ending.passed(partition(number))
        return counting.next_tally(ending.tallies.get(partition(number)), share.next, tells_passed=tells)

    def _do_tally(self, name: str, number: int) -> None:
        process = self._named(name)
        self._append(self._next_tally(process.shares[number].counting, process, number))
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
        process.telling = EndTold(ending.generation, ending.read_to, dict(ending.highs), {})

    def _do_write_end(self, name: str) -> None:
        process = self._named(name)
        assert process.telling is not None
        self._append(process.telling)
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
        told = max((fact.upto for fact in self.log if isinstance(fact, EndTold)), default=0)
        words = [fact for fact in self.log[told : ending.read_to] if isinstance(fact, Producing)]
        if not any(word.closes for word in words) and not ending.is_told:
            self.faults.append("the end was told of a task that nobody closed")
        done = {self.topic[number][offset] for number, done in enumerate(self.committed) for offset in done}
        begun_since = {fact.producer for fact in self.log[ending.read_to :] if isinstance(fact, Producing)}
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
                if any(self.topic[where.number][offset] in sender.pages for offset in missing):
                    self.faults.append(f"a seed of {sender.name} was not committed when the end was told")
        for where, tally in ending.tallies.items():
            mine = {offset for offset, page in enumerate(self.topic[where.number]) if page != OTHER}
            if any(offset < tally.passed and not tally.has_counted(offset) for offset in mine):
                self.faults.append("a seed is passed and was not counted")

    def _check_counts(self) -> None:
        for where, tally in self.truth.tallies.items():
            pages = self.topic[where.number]
            counted = sum(page != OTHER and tally.has_counted(offset) for offset, page in enumerate(pages))
            if counted != sum(tally.counts.seeds.values()):
                self.faults.append(f"{counted} seeds were counted as {tally.counts.seeds}")

    # --- parts ----------------------------------------------------------------------------------

    def _process(self) -> Process:
        self.born += 1
        process = Process(f"p{self.born}", self.rules.ending())
        for offset, fact in enumerate(self.log):
            process.ending.read(offset, fact)
        return process

    def _named(self, name: str) -> Process:
        return next(process for process in self.processes if process.name == name)

    def _give(self, number: int, process: Process) -> None:
        epoch = self.owner[number][1] + 1
        self.owner[number] = process.name, epoch
        done = self.committed[number]
        start = next(offset for offset in range(len(self.topic[number]) + 1) if offset not in done)
        counting = self.rules.counting(partition(number), f"{process.name}.{epoch}")
        process.shares[number] = Share(epoch, start, counting, done_before=frozenset(done))

    def _put(self, into: int, page: str) -> int:
        self.topic[into].append(page)
        return len(self.topic[into])

    def _append(self, fact: Fact) -> None:
        self.truth.read(len(self.log), fact)
        self.log.append(fact)
        for process in self.processes if self.reads_at_once else ():
            self._do_read(process.name)

    def copy(self) -> World:
        return pickle.loads(pickle.dumps(self))

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
    world.crashes = world.moves = world.additions = 0
    turn = 0
    while (steps := list(world.steps())) and not world.faults:
        turn += 1
        if turn > most:
            world.faults.append("it does not come to rest")
            return
        world.do(steps[turn % len(steps)])
    last_word = max((at for at, fact in enumerate(world.log) if isinstance(fact, Producing)), default=-1)
    ends = [fact for fact in world.log if isinstance(fact, EndTold) and fact.upto > last_word]
    if not world.faults and not ends:
        world.faults.append("the end was never told")
