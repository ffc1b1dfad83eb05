"""The example of a sink of one's own, docs/examples/warc_sink.py, behind a real crawl and after a crash."""

from __future__ import annotations

import asyncio
import base64
import errno
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import CannotResolveHostError
from scrapy.http import Response

from docs.examples import warc_sink
from docs.examples.warc_sink import WarcSink
from site_spider.contracts.sink import Answer, Record
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.results.document import Result
from site_spider.service import config as parts
from site_spider.spiders.crawl_spider import SeedSpider
from tests.contracts.warc_results import WarcRecord, WarcResults, records_of
from tests.in_process import engine
from tests.in_process.engine import crawl, page, settings_for

DOTTED_PATH = "docs.examples.warc_sink.WarcSink"
ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def fails(_request: Request) -> Response:
    raise CannotResolveHostError


def windows_1252(request: Request) -> Response:
    headers = {"Content-Type": "text/html; charset=windows-1252"}
    return Response(request.url, headers=headers, body="Größe".encode("cp1252"))


SITE: dict[str, engine.Answer] = {
    "/text": windows_1252,
    "/gone": lambda request: page(request, "gone", 404),
    "/unknown-host": fails,
    "/no-content": lambda request: page(request, "", 204),
    "/long": lambda request: page(request, "x" * 5000),
    "/picture": lambda request: Response(request.url, headers={"Content-Type": "image/png"}, body=PNG),
    "/refused": lambda request: page(request, "refused by one sink only"),
}


class PoisonSpider(SeedSpider):
    """Gives one result a content that the sink cannot write."""

    async def parse(self, response: Response) -> list[Any]:
        output = await super().parse(response)
        if response.url.endswith("/refused"):
            assert isinstance(output[0], Result)
            output[0].body, output[0].body_base64 = None, "not base64"
        return output


def files(folder: Path) -> list[Path]:
    """All that the sink left, in the order of writing."""
    return sorted((folder / "warc").iterdir())


def written(folder: Path, kind: str, key: str | None = None) -> list[WarcRecord]:
    """The records of a kind, of one result if it is named."""
    found = [record for path in files(folder) for record in records_of(path) if record.kind == kind]
    return [record for record in found if key is None or record.key == key]


def assert_valid(folder: Path) -> None:
    """By the library's own checker; and every file is whole, which that does not look at."""
    paths = files(folder)
    assert paths
    assert all(path.name.endswith(".warc.gz") for path in paths)
    checker = Path(sys.executable).with_name("warcio")
    checked = subprocess.run([checker, "check", *paths], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    for path in paths:
        assert gzip.decompress(path.read_bytes())


def test_a_crawl_leaves_valid_files_that_say_what_the_local_sink_says(tmp_path: Path) -> None:
    """Text in UTF-8, binary content byte by byte; what cannot be written is a dead letter alone."""
    engine.ANSWERS.update(SITE)
    crawled = crawl(
        tmp_path,
        [{"url": f"http://h.test{path}", "meta": {"url_id": path}} for path in SITE],
        PoisonSpider,
        SITE_SINKS=f"local,{DOTTED_PATH}",
        SITE_KEEP_BINARY=True,
        SITE_BODY_MAX_BYTES=1000,
        RETRY_TIMES=0,
    )
    assert_valid(tmp_path)
    found = {record.key: record for record in written(tmp_path, "resource")}
    text, long, picture = found["/text"], found["/long"], found["/picture"]
    assert found.keys() == {"/gone", "/long", "/picture", "/text"}
    assert text.block.decode() == crawled.documents["/text"]["body"] == "Größe"
    assert text.headers["Content-Type"] == "text/html; charset=utf-8"
    assert text.headers["WARC-Target-URI"] == "http://h.test/text"
    assert text.headers["WARC-Date"][:19] == crawled.documents["/text"]["fetched_at"][:19]
    assert text.headers["WARC-Date"].endswith("Z")
    assert (long.block, long.headers["WARC-Truncated"]) == (b"x" * 1000, "length")
    assert "WARC-Truncated" not in text.headers
    assert (picture.block, picture.headers["Content-Type"]) == (PNG, "image/png")
    assert base64.b64decode(crawled.documents["/picture"]["body_base64"]) == PNG

    (letter,) = crawled.dead_letters
    assert json.loads(letter.value or b"")["meta"]["url_id"] == "/refused"
    assert "body_base64 is not base64" in str(letter.headers)
    assert crawled.lag == 0
    assert crawled.documents.keys() == set(SITE)
    del crawled.documents["/refused"]
    assert len(written(tmp_path, "metadata")) == len(crawled.documents)
    for key, document in crawled.documents.items():
        (metadata,) = written(tmp_path, "metadata", key)
        record_id = found[key].headers["WARC-Record-ID"] if key in found else None
        assert metadata.headers.get("WARC-Concurrent-To") == record_id
        assert metadata.headers["WARC-Target-URI"] == f"http://h.test{key}"
        assert json.loads(metadata.block).items() <= document.items()
        assert WarcResults(tmp_path / "warc").get(key) == document


# --- The sink by itself ---


def record(key: str, **document: Any) -> Record:
    return Record(key, document, 100)


def sink_in(folder: Path, **settings: Any) -> WarcSink:
    return WarcSink.from_settings({"SITE_DATA_DIR": str(folder), **settings})


def write(folder: Path, *batches: Sequence[Record], **settings: Any) -> None:
    """Write the batches with a sink that is opened and closed."""

    async def scenario() -> None:
        sink = sink_in(folder, **settings)
        await sink.open()
        for batch in batches:
            await sink.write(batch)
        await sink.close()

    asyncio.run(scenario())


def test_files_are_rotated_by_size(tmp_path: Path) -> None:
    """Each stays below the limit and begins with a record that says what it is; no result is lost."""
    dice = random.Random(1)
    letters = "".join(dice.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=5000))  # does not compress
    batch = [record(str(number), body=letters) for number in range(30)]
    write(tmp_path, batch, SITE_WARC_MAX_BYTES="20000")
    assert len(files(tmp_path)) > 5
    assert all(path.stat().st_size <= 20_000 for path in files(tmp_path))
    assert all(records_of(path)[0].kind == "warcinfo" for path in files(tmp_path))
    assert {found.key for found in written(tmp_path, "metadata")} == {str(n) for n in range(30)}
    assert_valid(tmp_path)


def test_what_stands_in_headers_cannot_forge_others(tmp_path: Path) -> None:
    """Line ends and odd signs of a key, a URL and a type are written as URIs write them, or not at all."""
    odd = "x\r\nWARC-Type: forged \ud800ä"
    write(tmp_path, [record(odd, body="text", url=f"http://h.test/{odd}", content_type=odd)])
    (found,) = written(tmp_path, "resource")
    assert "%0D%0AWARC-Type:%20forged%20?%C3%A4" in found.headers["WARC-Target-URI"]
    assert found.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert found.headers["WARC-Type"] == "resource"
    assert_valid(tmp_path)


@pytest.mark.parametrize("lost", [1, 7, 8, 50])
def test_a_record_that_was_half_written_is_cut_off(tmp_path: Path, lost: int) -> None:
    """The whole ones before it stay; a file without a whole one goes."""
    write(tmp_path, [record("a", body="whole"), record("b", body="half" * 100)])
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    path.with_name("crashed-2.warc.gz.open").write_bytes(whole[:-lost])
    path.rename(path.with_name("crashed-1.warc.gz.open"))
    path.with_name("crashed-3.warc.gz.open").write_bytes(whole[:20])
    path.with_name("crashed-4.warc.gz.open").write_bytes(whole + bytes(4096))  # what some file systems leave
    write(tmp_path, [])
    assert [path.name for path in files(tmp_path)] == [f"crashed-{n}.warc.gz" for n in (1, 2, 4)]
    first, second, fourth = ([(r.kind, r.block) for r in records_of(path)] for path in files(tmp_path))
    assert first == fourth
    assert second == first[:-1]
    assert_valid(tmp_path)


def test_what_was_acknowledged_is_on_the_disk_and_in_a_file_of_the_process(tmp_path: Path) -> None:
    """Before the sink is closed, so that it survives a kill -9; any number of sinks share the folder.

    Nothing is ever changed: what is delivered again is there again.
    """

    async def scenario() -> None:
        first, second = sink_in(tmp_path), sink_in(tmp_path)
        for number, sink in enumerate((first, second, first, second), 1):
            await sink.open()
            assert (await sink.write([record("a", body=f"{number}")]))[0].answer is Answer.ACKNOWLEDGED
            assert len(written(tmp_path, "resource", "a")) == number
        assert [path.suffix for path in files(tmp_path)] == [".open", ".open"]
        await first.close()
        await second.close()

    asyncio.run(scenario())
    assert sorted(found.block for found in written(tmp_path, "resource", "a")) == [b"1", b"2", b"3", b"4"]
    assert (WarcResults(tmp_path / "warc").get("a") or {})["body"] == "4"
    assert_valid(tmp_path)


WRITER = """
import asyncio, sys
from tests.results.test_warc_example import Path, record, sink_in

async def write():
    sink = sink_in(Path(sys.argv[1]), SITE_WARC_MAX_BYTES=100_000)
    await sink.open()
    for number in range(10**9):
        await sink.write([record(f"{number}-{i}", body=f"{number} {i} " * 200) for i in range(20)])
        print(number, flush=True)

asyncio.run(write())
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, tmp_path]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        while int(writer.stdout.readline()) < 40:
            pass
        writer.kill()
        acknowledged = max(40, *map(int, writer.stdout.read().split()), 0)
    write(tmp_path, [record("after", status=200)])
    assert_valid(tmp_path)
    keys = {found.key for found in written(tmp_path, "metadata")}
    assert keys >= {f"{number}-{i}" for number in range(acknowledged + 1) for i in range(20)} | {"after"}


def full_disk(_folder: Path, patched: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    patched.setattr(warc_sink.os, "fsync", full)


def removed_file(folder: Path, _patched: pytest.MonkeyPatch) -> None:
    files(folder)[0].unlink()


@pytest.mark.parametrize(
    ("trouble", "said", "kept"),
    [(full_disk, r"SITE_DATA_DIR.*No space left", {"a", "b"}), (removed_file, "was removed", {"b"})],
)
def test_a_file_that_cannot_be_written_is_an_outage_and_leaves_valid_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trouble: Callable[[Path, pytest.MonkeyPatch], None],
    said: str,
    kept: set[str],
) -> None:
    """The error names the setting; the batch that is tried again later is written to a new file."""

    async def scenario() -> None:
        sink = sink_in(tmp_path)
        await sink.open()
        await sink.write([record("a", body="before")])
        with monkeypatch.context() as patched:
            trouble(tmp_path, patched)
            with pytest.raises(SinkUnavailable, match=said):
                await sink.write([record("b", body="meanwhile")])
        await sink.write([record("b", body="meanwhile")])
        await sink.close()

    asyncio.run(scenario())
    assert {found.key for found in written(tmp_path, "resource")} == kept
    assert_valid(tmp_path)


def test_a_copy_of_the_example_is_found_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever Python finds modules; the setting of its own is checked like any other."""
    shutil.copy(ROOT / "docs" / "examples" / "warc_sink.py", tmp_path / "sinks_of_mine.py")
    monkeypatch.syspath_prepend(tmp_path)
    local, mine = parts.sinks(settings_for(tmp_path, SITE_SINKS="local,sinks_of_mine.WarcSink"))
    assert (local.name, mine.name) == ("local", "warc")
    assert os.fspath(tmp_path) in str(sys.modules["sinks_of_mine"].__file__)
    with pytest.raises(ConfigError, match="SITE_WARC_MAX_BYTES"):
        sink_in(tmp_path, SITE_WARC_MAX_BYTES="1 GB")
