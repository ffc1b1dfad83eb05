"""What is particular to fingerprints in a file: its faults, and other processes' locks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from site_spider.adapters.local import done as local_done
from site_spider.adapters.local.done import LocalDone
from site_spider.contracts.done_store import DoneUnavailable

PAGES = [b"page %d" % number for number in range(2500)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalDone]:
    store = LocalDone(tmp_path / "data", "group")
    yield store
    store.close()


def test_pages_are_kept_in_the_file(store: LocalDone) -> None:
    """More than one statement takes; twice is as good as once."""
    store.add(PAGES)
    store.add(PAGES[:10])
    assert store.known([*PAGES, b"other"]) == set(PAGES)


def test_a_file_that_cannot_be_used_is_an_outage_and_not_the_end(store: LocalDone) -> None:
    """The error names setting, file and remedy; when the file is mended, it is used."""
    store.path.parent.mkdir()
    store.path.write_bytes(b"this is no database " * 500)
    for call in (store.open, lambda: store.known([b"page"]), lambda: store.add([b"page"])):
        with pytest.raises(DoneUnavailable, match=r"SITE_DATA_DIR.*seen\.sqlite"):
            call()
    store.path.unlink()
    store.add([b"page"])
    assert store.known([b"page"]) == {b"page"}


def test_reading_goes_on_while_another_process_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write gives up after a while, and succeeds when it is tried again."""
    monkeypatch.setattr(local_done, "_BUSY_SECONDS", 0.1)
    store = LocalDone(tmp_path / "data", "group")
    store.add([b"page"])
    assert store.known([b"page"]) == {b"page"}
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert store.known([b"page"]) == {b"page"}
        with pytest.raises(DoneUnavailable, match="locked"):
            store.add([b"another"])
        other.execute("COMMIT")
    store.add([b"another"])
    assert store.known([b"page", b"another"]) == {b"page", b"another"}
    store.close()
