"""Who joins again so that partitions that nobody has get an owner; names of members."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from site_spider.adapters.kafka.membership import (
    LOOK_SECONDS,
    GroupAssignment,
    MemberSlot,
    OwnerWatch,
    default_folder,
    owned_by,
)
from site_spider.contracts.seed_log import Partition

ONE, TWO, THREE = (Partition("seeds", number) for number in (1, 2, 3))


def assignment(owned: Mapping[str, set[Partition]], *, is_settled: bool = True) -> GroupAssignment:
    parts = {member: frozenset(those) for member, those in owned.items()}
    return GroupAssignment(parts, frozenset({ONE, TWO, THREE}), is_settled)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a watch that gets these answers, the last of them for ever."""

    def make(*answers: GroupAssignment | None) -> OwnerWatch:
        told = chain(answers, repeat(answers[-1]))
        monkeypatch.setattr(f"{OwnerWatch.__module__}.assignment_of", lambda *_of_what: next(told))
        return OwnerWatch(lambda: None, "group", ["seeds"])  # type: ignore[arg-type, return-value]

    return make


@pytest.mark.parametrize(
    ("told", "owes"),
    [
        pytest.param(assignment({"a-1": {ONE, TWO, THREE}}), False, id="each partition has an owner"),
        pytest.param(assignment({"a-1": {ONE}, "b-1": {TWO}}), True, id="one has none"),
        pytest.param(assignment({"b-1": {ONE}}), False, id="to join makes the group rebalance"),
        pytest.param(assignment({"a-1": set()}, is_settled=False), True, id="a rebalance is under way"),
        pytest.param(assignment({}, is_settled=False), False, id="there is no group"),
        pytest.param(None, True, id="the servers do not tell"),
    ],
)
def test_who_owes_a_join(watch: Any, told: GroupAssignment | None, owes: bool) -> None:
    """A member of a name that the group knows, unless each partition has an owner."""
    assert watch(told).owes_join("a") is owes


def turns_of(watched: OwnerWatch, member: str, looks: int) -> list[int]:
    """In which looks a member is to join again."""
    return [look for look in range(looks) if watched.is_to_rejoin(lambda: member, 1000 + look * LOOK_SECONDS)]


def test_the_member_with_the_fewest_partitions_joins_again_and_then_the_next(watch: Any) -> None:
    """After 30 s: partitions have no owner for a moment in each rebalance."""
    gap = assignment({"a": {ONE, TWO}, "b": set()})
    assert turns_of(watch(gap), "b", 8) == [3, 5, 7]
    assert turns_of(watch(gap), "a", 8) == [4, 6]


def test_a_gap_that_closes_or_moves_is_none(watch: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Neither is a rebalance, nor servers that do not tell, nor a group without members."""
    quiet = [
        assignment({"a": {ONE}, "b": {TWO}}),
        assignment({"a": {ONE}, "b": {THREE}}),
        assignment({"a": {ONE, TWO}, "b": {THREE}}),
        assignment({"a": set()}, is_settled=False),
        None,
        assignment({}),
    ]
    assert turns_of(watch(*quiet * 3, quiet[2]), "a", 20) == []
    assert caplog.messages == []


def test_a_gap_and_its_end_are_said_once(watch: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gap, whole = assignment({"a": {ONE}, "b": {TWO}}), assignment({"a": {ONE, THREE}, "b": {TWO}})
    turns_of(watch(*[gap] * 6, whole), "c", 9)
    first, second = caplog.messages
    assert first.startswith("Group group: nobody has had seeds/3 for 30 s.")
    assert second == "Group group: each partition has an owner again."


def test_an_assignment_is_read_and_another_form_is_none() -> None:
    """Each beginning of one is no assignment, and raises nothing."""
    parts = pack(">h5si3i", 5, b"seeds", 3, 1, 2, 3) + pack(">h4si0i", 4, b"bulk", 0)
    whole = pack(">hi", 1, 2) + parts + pack(">i", -1)
    assert owned_by(whole) == {ONE, TWO, THREE}
    assert [owned_by(whole[:end]) for end in range(len(whole) - 4)] == [frozenset()] * (len(whole) - 4)
    assert owned_by(b"\xff" * 40) == frozenset()


# --- names of group members: kept over restarts, never shared by two that live --------------------


CLAIM = """
import sys
from pathlib import Path
from site_spider.adapters.kafka.membership import MemberSlot
slot = MemberSlot.claim("group", Path(sys.argv[1]))
print(slot.instance_id, flush=True)
input()
"""


@pytest.fixture
def claim() -> Iterator[Callable[..., MemberSlot]]:
    """Takes slots that are free again at the end."""
    taken: list[MemberSlot] = []

    def make(*where: object) -> MemberSlot:
        taken.append(MemberSlot.claim(*where))  # type: ignore[arg-type]
        return taken[-1]

    yield make
    for slot in taken:
        slot.release()


def claimed_elsewhere(folder: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str], number: int) -> None:
    os.kill(process.pid, number)
    process.communicate()


def test_the_lowest_free_slot_is_taken(claim: Callable[..., MemberSlot], tmp_path: Path) -> None:
    first, second, third = (claim("group", tmp_path) for _ in range(3))
    assert [slot.number for slot in (first, second, third)] == [0, 1, 2]
    second.release()
    second.release()  # harmless to repeat
    again = claim("group", tmp_path)
    assert (again.number, again.instance_id) == (1, second.instance_id)


def test_two_live_processes_never_share_a_name(tmp_path: Path) -> None:
    """And one that was killed leaves its name to the next at once."""
    first, first_name = claimed_elsewhere(tmp_path)
    second, second_name = claimed_elsewhere(tmp_path)
    assert first_name != second_name
    end(first, signal.SIGKILL)
    third, third_name = claimed_elsewhere(tmp_path)
    assert third_name == first_name
    end(second, signal.SIGTERM)
    end(third, signal.SIGTERM)


def test_a_child_process_does_not_keep_the_slot(tmp_path: Path) -> None:
    """Programs that are started from here do not inherit the lock."""
    slot = MemberSlot.claim("group", tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        slot.release()
        again = MemberSlot.claim("group", tmp_path)
        assert again.number == slot.number
        again.release()
        child.communicate(b"\n")


def test_groups_count_their_slots_apart(claim: Callable[..., MemberSlot], tmp_path: Path) -> None:
    """Also those whose names are alike once they are made fit for a file."""
    slots = [claim(group, tmp_path) for group in ("a/b", "a:b", "a_b", "../../a", "x" * 300, "é")]
    assert {slot.number for slot in slots} == {0}
    assert all(slot.path.parent == tmp_path for slot in slots)


def test_the_name_tells_the_host_and_differs_between_folders(
    claim: Callable[..., MemberSlot], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders are counted apart, so the name must tell them apart, and so are containers of one machine."""
    slots = [claim("group", tmp_path / name) for name in ("one", "two")]
    assert slots[0].instance_id != slots[1].instance_id
    assert all(slot.instance_id.startswith(f"site_spider-{socket.gethostname()}-") for slot in slots)
    slots[0].release()
    monkeypatch.setattr(socket, "gethostname", lambda: "other host")
    assert claim("group", tmp_path / "one").instance_id.startswith("site_spider-other_host-")


def test_the_folder_belongs_to_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below XDG_RUNTIME_DIR, or in the folder for temporary files with the user's number."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_folder() == tmp_path / "site_spider"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert default_folder().name == f"site_spider-{os.getuid()}"
    MemberSlot.claim("group", tmp_path / "new").release()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_another_user_made_first_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name in the folder for temporary files can be guessed."""
    home = tmp_path / "home"
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    theirs = tmp_path / f"site_spider-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    theirs.symlink_to(tmp_path / "elsewhere")
    slot = MemberSlot.claim("group")
    slot.release()
    assert slot.path.parent == home / ".local" / "state" / "site_spider"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_slot_is_not_taken_where_others_could_have_their_hands_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could take all slots, or put links in the place of lock files, whose targets stay as they are.

    Nor in a folder behind a link, in a file, or in a folder of somebody else.
    """
    for name in ("slots", "real"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "slots").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("kept")
    for name in ("slots", "link", "file"):
        with pytest.raises(OSError, match=name) as refused:
            MemberSlot.claim("group", tmp_path / name)
        assert name == "file" or isinstance(refused.value, PermissionError)
    slot = MemberSlot.claim("group", tmp_path / "real")
    slot.release()
    slot.path.unlink()
    slot.path.symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="symbolic"):
        MemberSlot.claim("group", tmp_path / "real")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="another user"):
        MemberSlot.claim("group", tmp_path / "real")


def test_a_place_that_is_named_keeps_its_name_in_any_folder(claim: Callable[..., MemberSlot], tmp_path: Path) -> None:
    """A pod that is scheduled anew, on another machine, with another folder."""
    folders = [tmp_path / "before", tmp_path / "after"]
    slots = [claim("group", folder, "crawler-3") for folder in folders]
    assert [slot.instance_id for slot in slots] == ["site_spider-crawler-3-0"] * 2
    assert claim("group", folders[0], "crawler-3").instance_id == "site_spider-crawler-3-1"
