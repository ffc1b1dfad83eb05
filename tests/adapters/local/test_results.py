"""What is special about results in an SQLite file."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from site_spider.adapters import files
from site_spider.adapters.files import private_database
from site_spider.adapters.local.log import LocalSeedLog
from site_spider.adapters.local.results import FILE_NAME, RESULTS, LocalResults, LocalSink, LocalStore, merged
from site_spider.contracts.sink import Answer, Record
from site_spider.errors import ConfigError, SinkUnavailable
from tests.contracts.trials import answers, written


def record(key: str, **document: Any) -> Record:
    return Record(key, document, 10)


@pytest.mark.parametrize(("document", "said"), [({"body": "x" * 200_000}, "too big"), ({"status": 2**70}, "too large")])
def test_what_no_row_or_column_takes_is_refused_alone(document: dict[str, Any], said: str, tmp_path: Path) -> None:
    """SQLite's own limit is the record's fault; its neighbours are stored."""
    with closing(LocalStore(tmp_path, RESULTS)) as store:
        store._connected().setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
        verdicts = store.write([record("a", body="small"), record("b", **document), record("c", body="small")])
    assert answers(verdicts) == [Answer.ACKNOWLEDGED, Answer.REJECTED, Answer.ACKNOWLEDGED]
    assert said in verdicts[1].reason
    assert LocalResults(tmp_path).count() == 2


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    """The error names the setting and the file, nothing is overwritten."""
    path = tmp_path / FILE_NAME
    path.write_bytes(b"not a database, but somebody's " * 100)
    with pytest.raises(ConfigError, match=r"SITE_DATA_DIR.*results\.sqlite.*Restore it"):
        written(LocalSink(tmp_path), [])
    with pytest.raises(SinkUnavailable, match="SITE_DATA_DIR"):
        LocalStore(tmp_path, RESULTS).check()
    for folder in (tmp_path, path):
        with pytest.raises(ConfigError, match="SITE_DATA_DIR"):
            LocalResults(folder).count()
    assert path.read_bytes().startswith(b"not a database")


def test_a_lock_that_lasts_is_an_outage_and_no_file_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As operators were told when several processes began at once. When it is opened, or later."""
    monkeypatch.setattr("site_spider.adapters.local.results.BUSY_SECONDS", 0.05)
    LocalStore(tmp_path, RESULTS).write([record("a")])
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as other, closing(LocalStore(tmp_path, RESULTS)) as store:
        for ask in (store.open, partial(store.write, [record("a")])):
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(SinkUnavailable, match="locked"):
                ask()
            other.rollback()
            assert answers(store.write([record("b")])) == [Answer.ACKNOWLEDGED]
    assert not caplog.messages


def test_a_file_that_is_replaced_while_it_is_opened_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What went into the former one was acknowledged, and nobody found it."""
    replaced: list[Path] = []

    def wait_for_others(connection: sqlite3.Connection) -> None:
        if not replaced:
            replaced.append(path := tmp_path / FILE_NAME)
            path.unlink()
            private_database(path)
        switch(connection)

    switch = files._switch_to_wal
    monkeypatch.setattr(files, "_switch_to_wal", wait_for_others)
    with closing(LocalStore(tmp_path, RESULTS)) as store:
        assert answers(store.write([record("a")])) == [Answer.ACKNOWLEDGED]
        assert answers(store.write([record("b")])) == [Answer.ACKNOWLEDGED]
    assert replaced
    assert {document["url_id"] for document in LocalResults(tmp_path).search()} == {"a", "b"}


def test_a_full_disk_is_an_outage_until_there_is_room(tmp_path: Path) -> None:
    (store := LocalStore(tmp_path, RESULTS))._connected().execute("PRAGMA max_page_count = 20")
    with pytest.raises(SinkUnavailable, match="full"):
        store.write([record("a", body="small"), record("b", body="x" * 1_000_000)])
    assert LocalResults(tmp_path).count() == 0
    verdicts = store.write([record("a"), record("b", body="x" * 1_000_000)])
    assert answers(verdicts) == [Answer.ACKNOWLEDGED] * 2
    store.close()


def test_what_is_written_while_others_read_leaves_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`scrapy recrawl` writes each document twice, while it reads: a million may be 20 GB."""
    monkeypatch.setattr("site_spider.adapters.local.results._PART_ROWS", 50)
    written(LocalSink(tmp_path), [record(f"{number}") for number in range(120)])
    with closing(LocalStore(tmp_path, RESULTS)) as store:
        for found in LocalResults(tmp_path).search(limit=None, names=["url"]):
            store.write([record(found["url_id"], url="seen")])
            assert store.query("PRAGMA wal_checkpoint(TRUNCATE)")[0][0] == 0
    assert {found.get("url") for found in LocalResults(tmp_path).search(limit=None)} == {"seen"}


@pytest.mark.parametrize(("host", "questions"), [("few.test", 1), ("many.test", 3)])
def test_what_is_rare_is_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, questions: int
) -> None:
    """Each question reads all documents from where the one before has ended."""
    written(LocalSink(tmp_path), [record(f"{n}", host="many.test" if n else "few.test") for n in range(51)])
    monkeypatch.setattr("site_spider.adapters.local.results._PART_ROWS", 20)
    asked, ask = [], LocalResults._rows
    monkeypatch.setattr(LocalResults, "_rows", lambda *question: [asked.append(question), ask(*question)][1])
    assert len(list(LocalResults(tmp_path).search(fields={"host": host}))) == (50 if questions > 1 else 1)
    assert len(asked) == questions


def _fill(folder: Path, name: str) -> None:
    written(LocalSink(folder), *([record(f"{name}-{batch}-{n}", status=200) for n in range(20)] for batch in range(10)))


def test_processes_share_the_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_fill, args=(tmp_path / "new", str(number))) for number in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * 4
    assert LocalResults(tmp_path / "new").count(status=200) == 800


def test_a_merge_keeps_nulls_and_goes_into_objects() -> None:
    """Unlike a JSON merge patch, which deletes what is null."""
    old = {"a": 1, "b": {"x": 1, "y": {"z": 2}}, "c": [1], "d": {"e": 1}}
    new = {"a": None, "b": {"x": None, "y": {"w": 3}}, "c": [2], "d": 5}
    assert merged(old, new) == {"a": None, "b": {"x": None, "y": {"z": 2, "w": 3}}, "c": [2], "d": 5}


# --- what is kept on disk is this user's alone -----------------------------------------------------------

OURS = {0o600, 0o700}


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def produce(folder: Path, allowed: set[int]) -> None:
    with closing(LocalSeedLog(folder).producer()) as producer:
        producer.send("seeds", b"key", b"value").result(300)
        assert modes(folder) <= allowed  # while it is open: the -wal and -shm files


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}


def test_what_is_made_is_private(umask: int, tmp_path: Path) -> None:
    """Files, and the folders above them that were missing; while they are open, too.

    A folder that was there stays as it is: the project's own, or one like /tmp.
    """
    produce(tmp_path / "data" / "below", OURS)
    assert modes(tmp_path / "data") == OURS
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o755)
    produce(shared, {0o755, 0o600})
    assert modes(shared) == {0o755, 0o600}


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
