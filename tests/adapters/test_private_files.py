"""What is kept on disk is this user's alone, whatever the umask and whatever was there before."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from site_spider.adapters import files
from site_spider.adapters.files import private_database
from site_spider.adapters.kafka.membership import MemberSlot
from site_spider.adapters.local.log import LocalSeedLog

OURS = {0o600, 0o700}


@pytest.fixture(autouse=True)
def forgetful() -> None:
    """What was said in one test may be said in the next."""
    files._say_once.cache_clear()


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def produce(folder: Path, allowed: set[int]) -> None:
    producer = LocalSeedLog(folder).producer()
    producer.send("seeds", b"key", b"value").result(300)
    assert modes(folder) <= allowed  # while it is open: the -wal and -shm files
    producer.close()


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}


def test_what_is_made_is_private(umask: int, tmp_path: Path) -> None:
    """Files, and the folders above them that were missing; while they are open, too."""
    produce(tmp_path / "data" / "below", OURS)
    assert modes(tmp_path / "data") == OURS


def test_what_was_open_to_others_is_closed_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An earlier version made files as the umask had it."""
    folder = tmp_path / "data"
    produce(folder, OURS)
    for path in [folder, *folder.iterdir()]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    caplog.set_level(logging.WARNING)
    produce(folder, OURS)
    produce(folder, OURS)
    assert modes(folder) == OURS
    said = [entry.getMessage() for entry in caplog.records]
    assert len(said) == len(set(said)) == 1 + len(list(folder.iterdir()))
    assert all(str(folder) in line and "SITE_DATA_DIR" in line for line in said)


def test_an_open_wal_of_a_killed_process_is_closed_too(tmp_path: Path) -> None:
    """It holds the newest seeds."""
    path = tmp_path / "data" / "seeds.sqlite"
    private_database(path)
    beside = path.with_name("seeds.sqlite-wal")
    beside.touch()
    beside.chmod(0o644)
    private_database(path)
    assert stat.S_IMODE(beside.stat().st_mode) == 0o600


def test_locks_of_this_process_outlive_another_look(tmp_path: Path) -> None:
    """Opening and closing a file would release them."""
    path = tmp_path / "data" / "seeds.sqlite"
    private_database(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as ours:
        ours.execute("CREATE TABLE t (x)")
        ours.execute("BEGIN EXCLUSIVE")
        private_database(path)
        with closing(sqlite3.connect(path, timeout=0)) as other, pytest.raises(sqlite3.OperationalError):
            other.execute("INSERT INTO t VALUES (1)")


@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_folder_that_is_not_for_our_data_alone_stays_open(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The project's own, or one like /tmp; the files in it are closed."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    if mode == 0o755:
        monkeypatch.chdir(folder)
    produce(folder, {mode, 0o600})
    assert stat.S_IMODE(folder.stat().st_mode) == mode
    assert modes(folder) == {mode, 0o600}


# --- Slots of group members ---


def test_a_slot_is_not_taken_in_a_folder_that_others_may_write_to(tmp_path: Path) -> None:
    """They could take all slots, or put links in the place of lock files; nor behind a link, or in a file."""
    for name in ("slots", "real"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "slots").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name in ("slots", "link", "file"):
        with pytest.raises(OSError, match=name) as refused:
            MemberSlot.claim("group", tmp_path / name)
        assert name == "file" or isinstance(refused.value, PermissionError)


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    """What it leads to stays as it is."""
    slot = MemberSlot.claim("group", tmp_path)
    slot.release()
    slot.path.unlink()
    (tmp_path / "elsewhere").write_text("kept")
    slot.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        MemberSlot.claim("group", tmp_path)
