"""Names of group members: kept over restarts, never shared by two that live."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from site_spider.adapters.kafka.member_name import MemberSlot, default_folder

CLAIM = """
import sys
from pathlib import Path
from site_spider.adapters.kafka.member_name import MemberSlot
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


def number_of(slot: MemberSlot) -> int:
    return int(slot.instance_id.rpartition("-")[2])


def test_the_lowest_free_slot_is_taken(claim: Callable[..., MemberSlot], tmp_path: Path) -> None:
    first, second, third = (claim("group", tmp_path) for _ in range(3))
    assert [number_of(slot) for slot in (first, second, third)] == [0, 1, 2]
    second.release()
    second.release()  # harmless to repeat
    again = claim("group", tmp_path)
    assert again.instance_id == second.instance_id


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
        assert again.instance_id == slot.instance_id
        again.release()
        child.communicate(b"\n")


def test_groups_count_their_slots_apart(claim: Callable[..., MemberSlot], tmp_path: Path) -> None:
    """Also those whose names are alike once they are made fit for a file."""
    slots = [claim(group, tmp_path) for group in ("a/b", "a:b", "a_b", "../../a", "x" * 300, "é")]
    assert {number_of(slot) for slot in slots} == {0}
    assert len(list(tmp_path.glob("*.lock"))) == len(slots)


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
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    theirs = tmp_path / f"site_spider-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    theirs.symlink_to(tmp_path / "elsewhere")
    MemberSlot.claim("group").release()
    assert list((home / ".local" / "state" / "site_spider").iterdir())
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
    MemberSlot.claim("group", tmp_path / "real").release()
    [lock] = (tmp_path / "real").iterdir()
    lock.unlink()
    lock.symlink_to(tmp_path / "file")
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
