"""The files of the WARC sink: rotated, synced, mended, indexed; checked by warcio's own checker."""

from __future__ import annotations

import asyncio
import errno
import gzip
import io
import json
import random
import sqlite3
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from warcio.checker import Checker

from site_spider import settings as defaults
from site_spider.adapters.warc import sink as warc_sink
from site_spider.adapters.warc.sink import WarcFiles, WarcSink
from site_spider.contracts.sink import Answer, Exchange, Record
from site_spider.errors import ConfigError, SinkUnavailable
from tests.contracts import trials
from tests.contracts.folded_results import WarcRecord, records_of

ROOT = Path(__file__).resolve().parents[3]
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def record(key: str, body: bytes = b"page") -> Record:
    url = f"http://h.test/{key}"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body)
    asked = f"GET /{key} HTTP/1.1\r\nHost: h.test\r\n\r\n".encode()
    exchange = Exchange(url, asked, head, body, 1_700_000_000.0, "192.0.2.1")
    return Record(key, {"url": url, "status": 200, "body": "decoded"}, 100, exchanges=[exchange])


def sink_in(folder: Path, **settings: Any) -> WarcSink:
    ours = {name: value for name, value in vars(defaults).items() if name.startswith("SITE_")}
    return WarcSink.from_settings({**ours, "SITE_DATA_DIR": str(folder), **settings})


def write(folder: Path, *batches: Sequence[Record], **settings: Any) -> None:
    """Write the batches with a sink that is opened and closed."""
    trials.written(sink_in(folder, **settings), *batches)


def files(folder: Path, ending: str = "*.warc.gz*") -> list[Path]:
    return sorted((folder / "warc").glob(ending))


def written(folder: Path, kind: str, key: str | None = None) -> list[WarcRecord]:
    """The records of a kind, of one result if it is named."""
    found = [record for path in files(folder) for record in records_of(path) if record.kind == kind]
    return [record for record in found if key is None or record.key == key]


def keys(folder: Path, kind: str = "response") -> set[str]:
    return {found.key for found in written(folder, kind)}


def assert_valid(folder: Path) -> None:
    """By the library's own checker; every file is whole and has an index that leads to its records."""
    paths = files(folder)
    assert {path.suffix for path in paths} == {".gz"}
    said = io.StringIO()
    with redirect_stdout(said):
        status = Checker(Namespace(inputs=[*map(str, paths)], verbose=False)).process_all()
    assert (status, said.getvalue()) == (0, "")
    for path in paths:
        assert gzip.decompress(path.read_bytes())
        assert_indexed(path)


def assert_indexed(path: Path) -> None:
    data = path.read_bytes()
    lines = path.with_name(path.name.replace(".warc.gz", ".cdxj")).read_bytes().splitlines()
    assert lines == sorted(lines)
    found = []
    for fields in (json.loads(line.split(b" ", 2)[2]) for line in lines):
        assert fields["filename"] == path.name
        begin = int(fields["offset"])
        member = gzip.decompress(data[begin : begin + int(fields["length"])]).decode("latin-1")
        assert f"WARC-Target-URI: {fields['url']}\r\n" in member
        found.append(begin)
    listed = [one for one in records_of(path) if one.kind in ("response", "revisit", "resource")]
    listed = [one for one in listed if not one.headers.get("WARC-Profile", "").endswith("/server-not-modified")]
    assert len(set(found)) == len(found) == len(listed)


def test_files_are_rotated_by_size(tmp_path: Path) -> None:
    """Each stays below the limit and begins with a record that says what it is; no result is lost."""
    batch = [record(str(n), "".join(random.Random(n).choices(LETTERS, k=5000)).encode()) for n in range(30)]
    write(tmp_path, batch, SITE_WARC_MAX_BYTES="20000", SITE_WARC_PREFIX="my.archive")
    assert len(files(tmp_path)) > 5
    assert all(path.stat().st_size <= 20_000 for path in files(tmp_path))
    assert all(path.name.startswith("my.archive-") for path in files(tmp_path))
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "warc").iterdir())
    for path in files(tmp_path):
        assert [(first.kind, first.headers["WARC-Filename"]) for first in records_of(path)[:1]] == [
            ("warcinfo", path.name)
        ]
    assert keys(tmp_path) == {str(n) for n in range(30)}
    assert_valid(tmp_path)


def test_the_same_payload_of_the_same_page_is_a_revisit(tmp_path: Path) -> None:
    """Also by another process, later, or at once; another payload, another page and an empty one are in full."""
    write(tmp_path, [record("a"), record("a"), record("b"), record("empty", b"")])
    write(tmp_path, [record("a"), record("b", b"changed"), record("empty", b"")], [record("a")])
    (original,) = written(tmp_path, "response", "a")
    revisits = written(tmp_path, "revisit")
    assert [found.key for found in revisits] == ["a"] * 3
    for revisit in revisits:
        headers = revisit.headers
        assert headers["WARC-Profile"].endswith("/revisit/identical-payload-digest")
        assert headers["WARC-Refers-To"] == original.headers["WARC-Record-ID"]
        assert headers["WARC-Refers-To-Date"] == original.headers["WARC-Date"]
        assert headers["WARC-Payload-Digest"] == original.headers["WARC-Payload-Digest"]
        assert (revisit.payload, original.payload) == (b"", b"page")
    assert len(written(tmp_path, "response", "b")) == len(written(tmp_path, "response", "empty")) == 2
    assert_valid(tmp_path)


@pytest.mark.parametrize("line", [b"HTTP/1.1 304 Not Modified", b"HTTP/1.1 304"])
def test_an_answer_not_modified_refers_to_the_payload_of_the_page(tmp_path: Path, line: bytes) -> None:
    """Which an answer to HEAD is not, nor a failure, though they came later. The page itself is a revisit still."""
    (got,) = record("a").exchanges
    same = replace(got, head=line + b"\r\n\r\n", body=b"")
    head = replace(got, request=got.request.replace(b"GET", b"HEAD"), body=b"")
    failed = replace(got, head=b"HTTP/1.1 500 Oops\r\n\r\n", body=b"oops")
    later = [replace(record("a"), exchanges=[one]) for one in (head, failed, same, failed, got)]
    write(tmp_path, [record("a"), record("b")], *([one] for one in later))
    original, _, error = written(tmp_path, "response", "a")
    revisit, again, repeat = written(tmp_path, "revisit")
    assert revisit.headers["WARC-Profile"].endswith("/revisit/server-not-modified")
    for one, first in ((revisit, original), (again, error), (repeat, original)):
        for name, said in (("-Target-URI", "Target-URI"), ("-Date", "Date"), ("", "Record-ID")):
            assert one.headers[f"WARC-Refers-To{name}"] == first.headers[f"WARC-{said}"]
    assert_valid(tmp_path)


@pytest.mark.parametrize("trouble", ["gone", "no database", "a folder"])
def test_without_its_memory_all_is_written_in_full(tmp_path: Path, trouble: str) -> None:
    write(tmp_path, [record("a")])
    memory = tmp_path / "warc" / "repeats.sqlite"
    for path in files(tmp_path, "repeats.sqlite*"):
        path.unlink()
    if trouble == "a folder":
        memory.mkdir()
    elif trouble == "no database":
        memory.write_bytes(b"no database " * 1000)
    write(tmp_path, [record("a")])
    assert len(written(tmp_path, "response", "a")) == 2
    assert_valid(tmp_path)


def test_what_is_remembered_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warc_sink, "_KNOWN", 10)
    write(tmp_path, [record(str(n)) for n in range(30)])
    with closing(sqlite3.connect(tmp_path / "warc" / "repeats.sqlite")) as memory:
        assert memory.execute("SELECT count(*) FROM written").fetchone() == (10,)
    write(tmp_path, [record("3"), record("29")])
    assert keys(tmp_path, "revisit") == {"29"}


def test_an_index_is_made_again_and_one_of_many_lines_is_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warc_sink, "_LINES", 7)
    write(tmp_path, *([record(f"{n * 7919 % 100}")] for n in range(40)))
    assert_valid(tmp_path)
    (index,) = files(tmp_path, "*.cdxj")
    before = index.read_bytes()
    index.unlink()
    write(tmp_path)
    assert index.read_bytes() == before


@pytest.mark.parametrize("lost", [1, 7, 8, 50])
def test_a_record_that_was_half_written_is_cut_off(tmp_path: Path, lost: int) -> None:
    """The whole ones before it stay; a file without a whole one goes."""
    write(tmp_path, [record("a"), record("b", b"half" * 100)])
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    crashed = {n: path.with_name(path.name.replace("-00001-", f"-{n:05}-")) for n in (1, 2, 3, 4)}
    path.rename(f"{path}.open")
    Path(f"{crashed[2]}.open").write_bytes(whole[:-lost])
    Path(f"{crashed[3]}.open").write_bytes(whole[:20])
    Path(f"{crashed[4]}.open").write_bytes(whole + bytes(4096))  # what some file systems leave
    write(tmp_path, [])
    assert files(tmp_path) == [crashed[n] for n in (1, 2, 4)]
    first, second, fourth = ([(r.kind, r.block) for r in records_of(path)] for path in files(tmp_path))
    assert (second, fourth) == (first[:-1], first)
    assert_valid(tmp_path)


def test_files_of_other_archivers_stay_as_they_are(tmp_path: Path) -> None:
    """Heritrix writes to the first one just now, without a lock of ours."""
    write(tmp_path, [record("a")])
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    theirs = ["WEB-20260131000000000-00000-1234~crawler~8443.warc.gz.open", "wget.warc.gz", "crashed.warc.gz.open"]
    for name in theirs:
        path.with_name(name).write_bytes(whole[:-9])
    write(tmp_path, [record("b")])
    assert {name: path.with_name(name).read_bytes() for name in theirs} == dict.fromkeys(theirs, whole[:-9])
    assert len(files(tmp_path, "*.cdxj")) == 2


async def test_nothing_waits_for_what_a_crash_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start has 30 s, and to look through a file of 1 GB takes more."""
    await asyncio.to_thread(write, tmp_path, [record("a")])
    (path,) = files(tmp_path)
    path.rename(f"{path}.open")
    may_go, write_index = threading.Event(), warc_sink.write_index

    def slowly(path: Path, file: Any) -> int:
        assert may_go.wait(300)
        return write_index(path, file)

    monkeypatch.setattr(warc_sink, "write_index", slowly)

    sink = sink_in(tmp_path)
    await sink.open()
    assert (await sink.write([record("b")]))[0].answer is Answer.ACKNOWLEDGED
    may_go.set()
    await sink.close()
    assert keys(tmp_path) == {"a", "b"}
    assert_valid(tmp_path)


def test_many_small_files_are_not_looked_through_for_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end waited for as many looks as there were files."""
    looks: list[Path] = []
    may_go, iterdir = threading.Event(), Path.iterdir

    def look(folder: Path) -> Iterator[Path]:
        looks.append(folder)
        assert may_go.wait(300)
        return iterdir(folder)

    async def files_begin() -> None:
        sink = sink_in(tmp_path, SITE_WARC_MAX_BYTES=1)
        await sink.open()
        for key in LETTERS:
            await sink.write([record(key)])
        may_go.set()
        await sink.close()

    monkeypatch.setattr(Path, "iterdir", look)
    asyncio.run(files_begin())
    assert len(looks) == 2
    assert_valid(tmp_path)


def test_a_file_that_is_begun_is_not_taken_for_one_of_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files, flock = WarcFiles(tmp_path, 1, "p"), warc_sink.fcntl.flock

    def lock(file: Any, how: int) -> None:
        if how == warc_sink.fcntl.LOCK_EX:
            files._mend_aside()  # as for the file before, on a slow disk
            looked_through()
        flock(file, how)

    def looked_through() -> None:
        files._mender.submit(lambda: None).result(300)

    files.open()
    looked_through()
    monkeypatch.setattr(warc_sink.fcntl, "flock", lock)
    caplog.set_level("INFO")
    files.write([record("a"), record("b")])
    files.close()
    assert "left by a crash" not in caplog.text


async def test_what_was_acknowledged_is_on_the_disk_and_in_a_file_of_the_process(tmp_path: Path) -> None:
    """Before the sink is closed, so that it survives a kill -9; any number of sinks share the folder."""
    first, second = sink_in(tmp_path), sink_in(tmp_path)
    for number, sink in enumerate((first, second, first, second), 1):
        await sink.open()
        assert (await sink.write([record("a", b"%d" % number)]))[0].answer is Answer.ACKNOWLEDGED
        assert len(written(tmp_path, "response", "a")) == number
    assert [path.suffix for path in files(tmp_path)] == [".open", ".open"]
    await first.close()
    await second.close()
    assert sorted(found.payload for found in written(tmp_path, "response", "a")) == [b"1", b"2", b"3", b"4"]
    assert_valid(tmp_path)


def full_disk(_folder: Path, patched: pytest.MonkeyPatch) -> None:
    patched.setattr(warc_sink.os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))


def removed_file(folder: Path, _patched: pytest.MonkeyPatch) -> None:
    files(folder)[0].unlink()


def moved_folder(folder: Path, _patched: pytest.MonkeyPatch) -> None:
    (folder / "warc").rename(folder / "old")


@pytest.mark.parametrize("max_bytes", [1, 10**9])  # with 1 the next file is due, too
@pytest.mark.parametrize(
    ("trouble", "said", "kept"),
    [
        (full_disk, r"SITE_WARC_DIR.*No space left", {"a", "b"}),
        (removed_file, "was removed", {"b"}),
        (moved_folder, "or moved", {"b"}),
    ],
)
async def test_a_file_that_cannot_be_written_is_an_outage_and_leaves_valid_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[Path, pytest.MonkeyPatch], None],
    said: str,
    kept: set[str],
    max_bytes: int,
) -> None:
    """The error names the setting; the batch that is tried again later is there once."""
    sink = sink_in(tmp_path, SITE_WARC_MAX_BYTES=max_bytes)
    await sink.open()
    await sink.write([record("a")])
    with monkeypatch.context() as patched:
        trouble(tmp_path, patched)
        with pytest.raises(SinkUnavailable, match=said):
            await sink.write([record("b")])
    await sink.write([record("b")])
    await sink.close()
    assert keys(tmp_path) == kept
    assert len(written(tmp_path, "response", "b")) == len(written(tmp_path, "metadata", "b")) == 1
    assert "b" not in [
        one.headers.get("Site-Url-Id") for path in tmp_path.glob("old/*.open") for one in records_of(path)
    ]
    assert_valid(tmp_path)


def test_settings_are_checked(tmp_path: Path) -> None:
    wrong = {"SITE_WARC_MAX_BYTES": ("1 GB", 0), "SITE_WARC_PREFIX": ("a/b", "")}
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        with pytest.raises(ConfigError, match=name):
            sink_in(tmp_path, **{name: value})
    (tmp_path / "file").write_text("")
    blocked = sink_in(tmp_path, SITE_WARC_DIR=str(tmp_path / "file"))
    for ask in (blocked.open, blocked.check):
        with pytest.raises(ConfigError, match="SITE_WARC_DIR"):
            asyncio.run(ask())
    assert "will be created" in asyncio.run(sink_in(tmp_path).check())
