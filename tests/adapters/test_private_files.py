"""What is kept on disk is this user's alone, whatever the umask."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from site_spider.adapters.files import private_database
from site_spider.adapters.local.log import LocalSeedLog

OURS = {0o600, 0o700}


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


def test_a_folder_that_was_there_stays_as_it_is_and_files_in_it_are_private(umask: int, tmp_path: Path) -> None:
    """The project's own, or one like /tmp."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    produce(folder, {0o755, 0o600})
    assert modes(folder) == {0o755, 0o600}
