"""Computes who should own which partition: evenly, and with as few moves as possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice


def fair_share(
    members: Sequence[int], partitions: Sequence[int], owners: Mapping[int, int]
) -> dict[int, int]:
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
