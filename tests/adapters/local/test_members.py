"""Members of the embedded log: whether a process has ended, and who should have which partition."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.adapters.local import members
from site_spider.adapters.local.log_file import fair_share, has_ended, own_identity
from tests.contracts.seed_logs import wait_until

TELL = """
from site_spider.adapters.local.log_file import own_identity
print(own_identity(), flush=True)
input()
"""


def test_this_process_has_not_ended() -> None:
    assert has_ended(own_identity()) is False


def test_a_killed_process_has_ended_even_before_its_parent_noticed() -> None:
    """A zombie does nothing any more."""
    with subprocess.Popen(
        [sys.executable, "-c", TELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        identity = child.stdout.readline().strip()
        assert has_ended(identity) is False
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: has_ended(identity))
        assert child.returncode is None
    assert has_ended(identity) is True


@pytest.mark.parametrize(
    ("word", "said", "ended"),
    [
        pytest.param(3, "1", True, id="a later one with the same number: the start tick tells them apart"),
        pytest.param(0, "an-earlier-boot", True, id="of before the last boot: its number means nothing now"),
        pytest.param(1, "pid:[1]", None, id="of another container: its number means something else there"),
    ],
)
def test_another_process_is_judged_as_far_as_it_can_be(word: int, said: str, ended: bool | None) -> None:
    words = own_identity().split(" ")
    words[word] = said
    assert has_ended(" ".join(words)) is ended


def test_without_proc_nothing_can_be_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(members, "_PROC", tmp_path)
    members._boot.cache_clear()
    identity = own_identity()
    assert identity == f"- - {os.getpid()} -"
    assert has_ended(identity) is None
    members._boot.cache_clear()


# --- shares --------------------------------------------------------------------------------

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
    target = fair_share(members, partitions, owners)
    assert set(target) == set(partitions)
    shares = Counter(dict.fromkeys(members, 0)) | Counter(target.values())
    sizes = [shares[member] for member in members]
    assert max(sizes) - min(sizes) <= 1
    assert set(target.values()) <= set(members)


@given(MEMBERS, PARTITIONS)
def test_a_fair_share_is_left_alone(members: list[int], partitions: list[int]) -> None:
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
