"""What is particular to fingerprints in a file: its faults, and other processes' locks."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from site_spider.adapters.local import done as local_done
from site_spider.adapters.local.done import LocalDone
from site_spider.contracts.done_store import DoneUnavailable


def test_more_pages_than_one_statement_takes_are_kept(tmp_path: Path) -> None:
    pages = [b"page %d" % number for number in range(2500)]
    with closing(LocalDone(tmp_path / "data", "group")) as store:
        store.add(pages)
        store.add(pages[:10])
        assert store.known([*pages, b"other"]) == set(pages)


def test_reading_goes_on_while_another_process_holds_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
