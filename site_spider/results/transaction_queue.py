"""Results that wait until their seed is complete and can be stored with its offset.

Theory. A result that others can see while its seed is not committed would be stored again when the
seed is repeated. So the results of a tree are kept here until nothing else of the tree is left, and
then leave in one transaction with the positions that say that just these seeds are complete. Each
tree is in exactly one of three places:

- *open*: something else of it has still to end; it may get more items;
- *ready*: only its items are left, and it waits for a transaction;
- *under way*: in the one transaction that was handed out and has no answer yet.

The rules that must hold:

1. A position says that a seed is complete only in the transaction that holds all items of its tree, or in a
   later one. `commit` makes it so: the positions are worked out for the trees that are taken.
2. One transaction is under way at a time. The next one is put together when its answer is known, so
   positions never go back.
3. What was not committed goes back in front, and leaves in a later transaction as a whole.
4. A tree whose partition is gone is forgotten wherever it is: its next owner repeats the seed.
5. A position whose text has no room for all complete seeds is not used. A seed that it leaves out
   would be repeated, and its results stored twice; it waits until the watermark has moved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from site_spider.contracts.seed_log import Headers, Partition, Position
from site_spider.contracts.sink import Record
from site_spider.errors import BatchError
from site_spider.ledger.ledger import NOTHING, Ledger, SeedInFlight
from site_spider.results.batches_and_retries import BatchLimits

# A bitmap of the text of a commit reaches 18,000 offsets and more; the rest is for what is polled meanwhile.
LONGEST_SPAN_OFFSETS = 16_000


class Link(NamedTuple):
    """A link that goes to a seed topic as a seed."""

    topic: str
    key: bytes | None
    value: bytes
    headers: Headers

    @property
    def size_bytes(self) -> int:
        return len(self.value) + 100


Item = Record | Link


class Tree:
    """What is kept for one seed; `entry` is None for a result that no seed stands behind."""

    __slots__ = ("entry", "is_ready", "items", "ready_since", "size_bytes")

    def __init__(self, entry: SeedInFlight | None) -> None:
        self.entry = entry
        self.items: list[Item] = []
        self.size_bytes = 0
        self.is_ready = False
        self.ready_since = 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether its partition is still this process's."""
        return self.entry is None or self.entry.live


class Transaction(NamedTuple):
    """What is stored together or not at all."""

    trees: tuple[Tree, ...]
    positions: Mapping[Partition, Position]

    @property
    def items(self) -> list[Item]:
        return [item for tree in self.trees for item in tree.items]


class TransactionQueue:
    """See the module's theory. Times are seconds of any clock that never goes back."""

    def __init__(self, ledger: Ledger, limits: BatchLimits) -> None:
        self._ledger = ledger
        self._limits = limits
        self._trees: dict[SeedInFlight, Tree] = {}
        self._ready: OrderedDict[Tree, None] = OrderedDict()
        self._committed: dict[Partition, Position] = {}
        self._left: set[Partition] = set()  # since the transaction under way was put together
        self.under_way: Transaction | None = None
        self.size_bytes = 0  # of everything
        self.ready_bytes = 0  # of what waits for a transaction or is in one

    @property
    def ready_count(self) -> int:
        return len(self._ready)

    @property
    def _first_ready(self) -> Tree:
        return next(iter(self._ready))

    def is_open(self, entry: SeedInFlight) -> bool:
        """Whether something is kept of a tree that has not ended."""
        tree = self._trees.get(entry)
        return tree is not None and not tree.is_ready

    def keep(self, entry: SeedInFlight, item: Item) -> bool:
        """Keep an item of an open tree; True for the first of it.

        Raises BatchError when the tree is not open any more.
        """
        is_first = entry not in self._trees
        tree = self._trees.setdefault(entry, Tree(entry))
        if tree.is_ready:
            raise BatchError(f"{entry!r} has nothing left to wait for, yet gets one more result.")
        self._add(tree, item)
        return is_first

    def keep_alone(self, item: Item, now: float) -> None:
        """Take an item without a seed: ready at once."""
        self._add(tree := Tree(None), item)
        self._make_ready(tree, now)

    def end(self, entry: SeedInFlight, now: float) -> None:
        """Nothing else of this tree is left: it is ready. Raises BatchError when it is so already."""
        tree = self._trees[entry]
        if tree.is_ready:
            raise BatchError(f"{entry!r} is ready already.")
        self._make_ready(tree, now)

    def is_due(self, now: float) -> bool:
        if not self._ready:
            return False
        return (
            self.ready_bytes >= self._limits.size_bytes
            or len(self._ready) >= self._limits.count
            or now >= self._first_ready.ready_since + self._limits.age_seconds
        )

    def commit(self, *, with_trees: bool, anyway: Collection[Partition] = ()) -> Transaction | None:
        """Put the next transaction together, of ready trees and of positions that have changed.

        `anyway` names partitions whose position is to be committed in any case. None when there is nothing
        to do. Raises BatchError while one is under way.
        """
        if self.under_way is not None:
            raise BatchError("a transaction is under way; the next one depends on its answer.")
        trees = self._gathered() if with_trees else []
        offsets = _offsets(trees)
        positions: dict[Partition, Position] = {}
        for partition in self._ledger.partitions():
            besides: Collection[int] = offsets.get(partition, NOTHING)
            position = self._ledger.position(partition, besides=besides)
            if position is not None and self._ledger.of_partition(partition).is_told_by(position, besides):
                if position != self._committed.get(partition) or partition in anyway:
                    positions[partition] = position
            elif besides:
                trees = self._without(partition, trees)
        if not trees and not positions:
            return None
        self.under_way, self._left = Transaction(tuple(trees), positions), set()
        return self.under_way

    def committed(self) -> tuple[Tree, ...]:
        """The transaction is stored; returns its trees, which are no longer kept."""
        transaction = self._answered()
        self._committed.update((one, at) for one, at in transaction.positions.items() if one not in self._left)
        for tree in transaction.trees:
            self._drop(tree)
        return transaction.trees

    def not_committed(self) -> list[SeedInFlight]:
        """Nothing of the transaction is stored: its trees wait in front again.

        Returns the seeds of those that are dropped, because their partition has left.
        """
        return self._put_back(self._answered().trees)

    def refused(self, numbers: Collection[int]) -> tuple[dict[Tree, int], list[SeedInFlight]]:
        """The server refuses these items of the transaction under way, by number; nothing of it is stored.

        They are dropped. Their trees, which are returned with the first number of each, are open again, so that
        something can be done about it; the others wait in front. Returns also what `not_committed` does.
        """
        trees = self._answered().trees
        opened: dict[Tree, int] = {}
        first = 0
        for tree in trees:
            unwanted = {number for number in range(len(tree.items)) if first + number in numbers}
            if unwanted and tree.is_wanted:
                opened[tree] = first + min(unwanted)
            first += len(tree.items)
            if tree in opened:
                self._reopen(tree, unwanted)
        return opened, self._put_back([tree for tree in trees if tree not in opened])

    def forget(self, entry: SeedInFlight) -> bool:
        """The seed is complete or another process's: nothing of it is kept, but for what is under way.

        True when something was.
        """
        tree = self._trees.get(entry)
        if tree is None or (tree.is_ready and tree not in self._ready):
            return False
        self._ready.pop(tree, None)
        self._drop(tree)
        return True

    def forget_positions(self, partitions: Iterable[Partition]) -> None:
        """They have left: what was committed for them says nothing about a later assignment."""
        for partition in partitions:
            self._committed.pop(partition, None)
            self._left.add(partition)

    def _add(self, tree: Tree, item: Item) -> None:
        tree.items.append(item)
        tree.size_bytes += item.size_bytes
        self.size_bytes += item.size_bytes

    def _make_ready(self, tree: Tree, now: float) -> None:
        tree.is_ready, tree.ready_since = True, now
        self.ready_bytes += tree.size_bytes
        self._ready[tree] = None

    def _reopen(self, tree: Tree, unwanted: Collection[int]) -> None:
        self._drop(tree)
        tree.is_ready = False
        tree.items = [item for number, item in enumerate(tree.items) if number not in unwanted]
        tree.size_bytes = sum(item.size_bytes for item in tree.items)
        if tree.entry is not None:
            self._trees[tree.entry] = tree
            self.size_bytes += tree.size_bytes

    def _gathered(self) -> list[Tree]:
        room = self._limits.size_bytes
        trees: list[Tree] = []
        while self._ready and (not trees or self._first_ready.size_bytes <= room):
            tree, _ = self._ready.popitem(last=False)
            room -= tree.size_bytes
            trees.append(tree)
        return trees

    def _without(self, partition: Partition, trees: list[Tree]) -> list[Tree]:
        left_out = {tree: None for tree in trees if tree.entry is not None and tree.entry.partition == partition}
        self._put_back(left_out)
        return [tree for tree in trees if tree not in left_out]

    def _put_back(self, trees: Collection[Tree]) -> list[SeedInFlight]:
        dropped: list[SeedInFlight] = []
        for tree in reversed(tuple(trees)):
            if tree.entry is None or tree.entry.live:
                self._ready[tree] = None
                self._ready.move_to_end(tree, last=False)
            else:
                self._drop(tree)
                dropped.append(tree.entry)
        return dropped

    def _answered(self) -> Transaction:
        transaction, self.under_way = self.under_way, None
        if transaction is None:
            raise BatchError("no transaction is under way.")
        return transaction

    def _drop(self, tree: Tree) -> None:
        self.size_bytes -= tree.size_bytes
        if tree.is_ready:
            self.ready_bytes -= tree.size_bytes
        if tree.entry is not None:
            self._trees.pop(tree.entry, None)


def _offsets(trees: Collection[Tree]) -> dict[Partition, set[int]]:
    offsets: dict[Partition, set[int]] = {}
    for tree in trees:
        if tree.entry is not None and tree.entry.live:
            offsets.setdefault(tree.entry.partition, set()).add(tree.entry.offset)
    return offsets
