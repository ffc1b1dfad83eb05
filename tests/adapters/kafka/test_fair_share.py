"""Partitions are shared evenly, completely and with few moves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from site_spider.adapters.local.members import fair_share

MEMBERS = st.lists(st.integers(1, 9), min_size=1, max_size=6, unique=True)
PARTITIONS = st.lists(st.integers(0, 30), max_size=12, unique=True)
OWNERS = st.dictionaries(st.integers(0, 30), st.integers(1, 12))


def test_without_members_nobody_owns_anything() -> None:
    """And nothing is divided by nothing."""
    assert fair_share([], [1, 2], {1: 7}) == {}


@given(MEMBERS, PARTITIONS, OWNERS)
def test_every_partition_has_one_member_and_shares_differ_by_one(
    members: list[int], partitions: list[int], owners: dict[int, int]
) -> None:
    """Whoever owned them before."""
    target = fair_share(members, partitions, owners)
    assert set(target) == set(partitions)
    shares = Counter(dict.fromkeys(members, 0)) | Counter(target.values())
    sizes = [shares[member] for member in members]
    assert max(sizes) - min(sizes) <= 1
    assert set(target.values()) <= set(members)


@given(MEMBERS, PARTITIONS)
def test_a_fair_share_is_left_alone(members: list[int], partitions: list[int]) -> None:
    """What was reached once stays."""
    target = fair_share(members, partitions, {})
    assert fair_share(members, partitions, target) == target


@given(MEMBERS, PARTITIONS, OWNERS, st.randoms())
def test_members_that_act_one_by_one_arrive_at_a_fair_share(
    members: list[int], partitions: list[int], owners: dict[int, int], random: object
) -> None:
    """Giving up first and claiming what is free, in any order, ends with everybody content."""
    owners = {one: owner for one, owner in owners.items() if owner in members and one in partitions}
    for _ in range(4 * (len(partitions) + 1)):
        member = random.choice(members)  # type: ignore[attr-defined]
        act(member, members, partitions, owners)
    for _ in range(len(partitions) + 2):
        for member in members:
            act(member, members, partitions, owners)
    assert owners == fair_share(members, partitions, owners)


def act(member: int, members: list[int], partitions: list[int], owners: dict[int, int]) -> None:
    target = fair_share(members, partitions, owners)
    for one in partitions:
        if owners.get(one) == member != target[one]:
            del owners[one]
        elif one not in owners and target[one] == member:
            owners[one] = member
