"""Members of a group of the embedded seed log: which are alive, and which partitions each has claimed.

Theory of operation. All members read the same tables and compute the same fair share, so there is
no leader. An owner gives a partition up before another claims it: a claim is only ever inserted
where there is none. A member that is dead loses its claims to the first who notices: at once when
its process has ended, after STALLED_SECONDS when it runs but does not poll, after SILENT_SECONDS when
its process cannot be seen from here. Times are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from site_spider import runtime
from site_spider.adapters.local.log_file import LogFile
from site_spider.contracts.seed_log import Partition, Position
from site_spider.errors import LogUnavailable

# --- Computes who should own which partition: evenly, and with as few moves as possible ------------------


def fair_share(members: Sequence[int], partitions: Sequence[int], owners: Mapping[int, int]) -> dict[int, int]:
    """The member for each partition, given who owns what now.

    Every member computes the same from the same view, so no leader is needed. Members keep
    what they own up to their share; those who own most get the larger shares.
    """
    if not members:
        return {}
    held = {member: [one for one in partitions if owners.get(one) == member] for member in members}
    order = sorted(members, key=lambda member: (-len(held[member]), member))
    least, larger = divmod(len(partitions), len(members))
    shares = {member: least + (rank < larger) for rank, member in enumerate(order)}
    target = {one: member for member in order for one in held[member][: shares[member]]}
    spare = iter([one for one in partitions if one not in target])
    for member in order:
        missing = max(shares[member] - len(held[member]), 0)
        target.update(dict.fromkeys(islice(spare, missing), member))
    return target


# --- Tells whether a process of this machine still runs, even if its number belongs to a new one ---------

_PROC = Path("/proc")
_STATE, _START = 0, 19  # fields of /proc/PID/stat behind the command's name
_ENDED = {"Z", "X"}  # a zombie ended, even when its parent has not noticed


def own_identity() -> str:
    """What `has_ended` needs to recognise this process: boot, PID namespace, PID and start tick."""
    pid = os.getpid()
    status = _status(pid)
    return " ".join([_boot(), _namespace(), str(pid), status[_START] if status else "-"])


def has_ended(identity: str) -> bool | None:
    """Whether that process has ended; None when it cannot be known from here.

    It cannot where there is no /proc, nor about a process of another container.
    """
    boot, namespace, pid, start = identity.split(" ")
    if "-" in (boot, namespace, start):
        return None
    if boot != _boot():
        return True
    if namespace != _namespace():
        return None
    status = _status(int(pid))
    if status is not None:
        return status[_START] != start or status[_STATE] in _ENDED
    try:
        os.kill(int(pid), 0)  # sends nothing, asks only
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return None


@cache
def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "-"


def _namespace() -> str:
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return "-"


def _status(pid: int) -> list[str] | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the name in parentheses may itself hold anything


STALLED_SECONDS = 60.0
SILENT_SECONDS = 10.0
BEAT_SECONDS = 2.0

_UPSERT_POSITION = "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)"
_DELETE_CLAIM = "DELETE FROM claims WHERE consumer_group = ? AND partition_id = ? AND member = ?"


class Claim(NamedTuple):
    """A partition that has become ours, and what the group has committed there."""

    partition: Partition
    partition_id: int
    committed: Position | None


class Moves(NamedTuple):
    """What has to be done: `lost` are gone, `leaving` should be given up, `coming` can be claimed."""

    lost: list[Partition]
    leaving: list[Partition]
    coming: list[Partition]


class Membership:
    """One member of `group`, reading `topic`."""

    def __init__(self, file: LogFile, group: str, topic: str) -> None:
        self._file = file
        self._group = group
        self._topic = topic
        self._member = 0  # nobody's: ids are positive
        self._beat_at = 0.0
        self._owned: dict[Partition, int] = {}

    def look(self) -> Moves:
        """Say that we are alive, bury the dead, and see what has to be done. Raises LogUnavailable."""
        gone = self._beat()
        partitions, members, owners = self._view()
        lost = gone + [one for one, identifier in self._owned.items() if owners.get(identifier) != self._member]
        for partition in lost:
            self._owned.pop(partition, None)
        target = fair_share(members, sorted(partitions.values()), owners)
        leaving = [one for one, identifier in self._owned.items() if target.get(identifier) != self._member]
        coming = [
            one
            for one, identifier in partitions.items()
            if target.get(identifier) == self._member and identifier not in owners
        ]
        return Moves(lost, leaving, coming)

    @property
    def is_there(self) -> bool:
        """Whether the group knows this member. Any thread may ask."""
        return self._member != 0

    def claim(self, partitions: Iterable[Partition]) -> list[Claim]:
        """Take those that are still free. Raises LogUnavailable."""
        with self._file.transaction() as connection:
            if not connection.execute("SELECT 1 FROM members WHERE id = ?", (self._member,)).fetchone():
                return []
            claims = [claim for one in partitions if (claim := self._claim(connection, one))]
        self._owned.update((claim.partition, claim.partition_id) for claim in claims)
        return claims

    def commit(self, positions: Mapping[Partition, Position]) -> None:
        """Raises LogUnavailable, and commits nothing, unless we own all of these."""
        with self._file.transaction() as connection:
            self._commit(connection, positions)

    def give_up(self, partitions: Iterable[Partition], positions: Mapping[Partition, Position]) -> None:
        """Commit and free the partitions, both or nothing. Raises LogUnavailable."""
        identifiers = [self._owned[partition] for partition in partitions]
        with self._file.transaction() as connection:
            self._commit(connection, positions)
            rows = [(self._group, identifier, self._member) for identifier in identifiers]
            connection.executemany(_DELETE_CLAIM, rows)
        for partition in partitions:
            self._owned.pop(partition, None)

    def leave(self) -> None:
        """Remove this member and its claims. Raises LogUnavailable."""
        with self._file.transaction() as connection:
            _bury(connection, self._member)
        self._member = 0
        self._owned.clear()

    # --- being alive ---------------------------------------------------------------------

    def _beat(self) -> list[Partition]:
        """What we lost because the others took us for dead."""
        rows = self._file.query(
            "SELECT id, process, seen_at_seconds FROM members WHERE consumer_group = ? AND topic = ?",
            (self._group, self._topic),
        )
        dead = [identifier for identifier, *life in rows if identifier != self._member and _is_dead(*life)]
        present = any(identifier == self._member for identifier, *_ in rows)
        if present and not dead and runtime.monotonic() < self._beat_at + BEAT_SECONDS:
            return []
        return self._write_beat(dead)

    def _write_beat(self, dead: list[int]) -> list[Partition]:
        gone: list[Partition] = []
        with self._file.transaction() as connection:
            for member in dead:
                _bury(connection, member)
            now = runtime.monotonic()
            member = self._member
            update = "UPDATE members SET seen_at_seconds = ? WHERE id = ?"
            if not connection.execute(update, (now, member)).rowcount:
                gone = list(self._owned)
                # random, because a counter begins anew in a file that replaces a removed one
                member = 1 + runtime.randbelow(2**62)
                values = (member, self._group, self._topic, own_identity(), now)
                connection.execute("INSERT INTO members VALUES (?, ?, ?, ?, ?)", values)
        self._member, self._beat_at = member, now
        for partition in gone:
            del self._owned[partition]
        return gone

    # --- the tables ------------------------------------------------------------------------

    def _view(self) -> tuple[dict[Partition, int], list[int], dict[int, int]]:
        """Partitions of the topic with their ids, members, and the member that owns each id."""
        rows = self._file.query(
            "SELECT id, number, member FROM partitions LEFT JOIN claims ON partition_id = id"
            " AND consumer_group = ? WHERE topic = ? ORDER BY number",
            (self._group, self._topic),
        )
        members = self._file.query(
            "SELECT id FROM members WHERE consumer_group = ? AND topic = ? ORDER BY id", (self._group, self._topic)
        )
        partitions = {Partition(self._topic, number): identifier for identifier, number, _ in rows}
        owners = {identifier: member for identifier, _, member in rows if member is not None}
        return partitions, [member for (member,) in members], owners

    def _claim(self, connection: sqlite3.Connection, partition: Partition) -> Claim | None:
        found = connection.execute("SELECT id FROM partitions WHERE topic = ? AND number = ?", partition).fetchone()
        if found is None:
            return None
        values = (self._group, found[0])
        claimed = connection.execute("INSERT OR IGNORE INTO claims VALUES (?, ?, ?)", (*values, self._member))
        if not claimed.rowcount:
            return None
        row = connection.execute(
            "SELECT next_offset, metadata FROM positions WHERE consumer_group = ? AND partition_id = ?", values
        ).fetchone()
        return Claim(partition, found[0], Position(*row) if row else None)

    def _commit(self, connection: sqlite3.Connection, positions: Mapping[Partition, Position]) -> None:
        rows = connection.execute(
            "SELECT partition_id FROM claims WHERE consumer_group = ? AND member = ?", (self._group, self._member)
        )
        claimed = {identifier for (identifier,) in rows}
        for partition, position in positions.items():
            identifier = self._owned.get(partition)
            if identifier not in claimed:
                raise LogUnavailable(
                    f"Group {self._group} cannot commit {partition.topic}/{partition.number} here:"
                    " not assigned (any more)."
                )
            connection.execute(_UPSERT_POSITION, (self._group, identifier, *position))


def without_owner(file: LogFile, group: str, topic: str) -> list[Partition]:
    """Partitions that no member has claimed that is alive. Raises LogUnavailable."""
    rows = file.query(
        "SELECT number, process, seen_at_seconds FROM partitions"
        " LEFT JOIN claims ON partition_id = partitions.id AND claims.consumer_group = ?"
        " LEFT JOIN members ON members.id = claims.member WHERE partitions.topic = ? ORDER BY number",
        (group, topic),
    )
    return [Partition(topic, number) for number, *life in rows if life[0] is None or _is_dead(life[0], life[1])]


def _is_dead(process: str, seen_at_seconds: float) -> bool:
    silence = runtime.monotonic() - seen_at_seconds
    ended = has_ended(process)
    return silence > SILENT_SECONDS if ended is None else ended or silence > STALLED_SECONDS


def _bury(connection: sqlite3.Connection, member: int) -> None:
    connection.execute("DELETE FROM claims WHERE member = ?", (member,))
    connection.execute("DELETE FROM members WHERE id = ?", (member,))
