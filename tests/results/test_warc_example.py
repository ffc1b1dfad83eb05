"""The example of a sink of one's own, docs/examples/warc_sink.py, behind real crawls and a kill -9."""

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.exceptions import CannotResolveHostError
from scrapy.http import Response

from docs.examples import warc_sink
from docs.examples.warc_sink import WarcSink
from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.results.document import Result
from site_spider.service import config as parts
from site_spider.spiders.crawl_spider import SeedSpider
from tests.contracts.warc_results import WarcRecord, WarcResults, records_of
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page, settings_for

DOTTED_PATH = "docs.examples.warc_sink.WarcSink"
ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def fails(_request: Request) -> Response:
    raise CannotResolveHostError


def binary(request: Request) -> Response:
    return Response(request.url, headers={"Content-Type": "image/png"}, body=PNG)


def windows_1252(request: Request) -> Response:
    headers = {"Content-Type": "text/html; charset=windows-1252", "X-Kept": "yes"}
    return Response(request.url, headers=headers, body="Größe".encode("cp1252"))


SITE: dict[str, engine.Answer] = {
    "/text": windows_1252,
    "/gone": lambda request: page(request, "gone", 404),
    "/moved": lambda request: page(request, "", 302, Location="/text"),
    "/unknown-host": fails,
    "/no-content": lambda request: page(request, "", 204),
    "/long": lambda request: page(request, "x" * 5000),
    "/picture": binary,
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the crawl of the site keeps its files."""
    return tmp_path_factory.mktemp("warc")


@pytest.fixture(scope="module")
def crawled(folder: Path) -> Crawled:
    """A crawl with two sinks: the local one, and the example by its dotted path."""
    engine.ANSWERS.update(SITE)
    return crawl(
        folder,
        [{"url": f"http://h.test{path}", "meta": {"url_id": path}} for path in SITE],
        PoisonSpider,
        SITE_SINKS=f"local,{DOTTED_PATH}",
        SITE_KEEP_BINARY=True,
        SITE_BODY_MAX_BYTES=1000,
        RETRY_TIMES=0,
    )


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


def test_the_files_of_a_crawl_are_valid_and_its_seeds_complete(folder: Path, crawled: Crawled) -> None:
    """Nothing is left open, and nothing half written."""
    assert crawled.lag == 0
    assert_valid(folder)


def test_every_response_with_content_is_one_resource_record(folder: Path, crawled: Crawled) -> None:
    """Text in UTF-8, and said so, whatever it came in."""
    assert sorted(record.key for record in written(folder, "resource")) == sorted(
        ["/gone", "/long", "/moved", "/picture", "/text"]
    )
    (text,) = written(folder, "resource", "/text")
    assert text.block.decode() == crawled.documents["/text"]["body"] == "Größe"
    assert text.headers["Content-Type"] == "text/html; charset=utf-8"
    assert text.headers["WARC-Target-URI"] == "http://h.test/text"
    assert text.headers["WARC-Date"][:19] == crawled.documents["/text"]["fetched_at"][:19]
    assert text.headers["WARC-Date"].endswith("Z")


def test_content_that_was_cut_is_marked_as_the_format_has_it(folder: Path, crawled: Crawled) -> None:
    """For length, which is the word for a limit of the crawler's."""
    (long,) = written(folder, "resource", "/long")
    assert long.block == b"x" * 1000
    assert long.headers["WARC-Truncated"] == "length"
    assert "WARC-Truncated" not in written(folder, "resource", "/text")[0].headers


def test_binary_content_is_there_byte_by_byte(folder: Path, crawled: Crawled) -> None:
    """Not as the base64 that the document has."""
    (picture,) = written(folder, "resource", "/picture")
    assert picture.block == PNG
    assert picture.headers["Content-Type"] == "image/png"
    assert base64.b64decode(crawled.documents["/picture"]["body_base64"]) == PNG


def test_a_metadata_record_has_the_rest_of_each_document(folder: Path, crawled: Crawled) -> None:
    """It names the record with the content; together they are the document of the local sink."""
    for key, document in crawled.documents.items():
        if key == "/refused":
            continue
        (metadata,) = written(folder, "metadata", key)
        assert json.loads(metadata.block).items() <= document.items()
        for resource in written(folder, "resource", key):
            assert metadata.headers["WARC-Concurrent-To"] == resource.headers["WARC-Record-ID"]
            assert metadata.headers["WARC-Target-URI"] == resource.headers["WARC-Target-URI"]
        assert WarcResults(folder / "warc").get(key) == document


@pytest.mark.parametrize("key", ["/unknown-host", "/no-content"])
def test_a_result_without_content_is_a_metadata_record_alone(
    key: str, folder: Path, crawled: Crawled
) -> None:
    """A failure says why, under the URL that was asked for."""
    (metadata,) = written(folder, "metadata", key)
    assert "WARC-Concurrent-To" not in metadata.headers
    assert metadata.headers["WARC-Target-URI"] == f"http://h.test{key}"
    assert json.loads(metadata.block)["description"] == crawled.documents[key]["description"]


def test_a_result_that_cannot_be_written_is_a_dead_letter_alone(folder: Path, crawled: Crawled) -> None:
    """With the sink's reason; the other sink has it, and the other results are in the file."""
    (letter,) = crawled.dead_letters
    assert json.loads(letter.value or b"")["meta"]["url_id"] == "/refused"
    assert "body_base64 is not base64" in str(letter.headers)
    assert "/refused" in crawled.documents
    assert not written(folder, "metadata", "/refused")
    assert len(written(folder, "metadata")) == len(SITE) - 1


def test_files_are_rotated_by_size(tmp_path: Path) -> None:
    """Each stays below the limit and begins with a record that says what it is; no result is lost."""
    dice = random.Random(1)
    letters = "".join(dice.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=5000))  # does not compress
    engine.ANSWERS.update({f"/page{n}": lambda request: page(request, letters) for n in range(30)})
    seeds = [{"url": f"http://h.test/page{n}", "meta": {"url_id": str(n)}} for n in range(30)]
    crawl(tmp_path, seeds, SITE_SINKS=f"local,{DOTTED_PATH}", SITE_WARC_MAX_BYTES="20000")
    assert len(files(tmp_path)) > 5
    assert all(path.stat().st_size <= 20_000 for path in files(tmp_path))
    assert all(records_of(path)[0].kind == "warcinfo" for path in files(tmp_path))
    assert {record.key for record in written(tmp_path, "metadata")} == {str(n) for n in range(30)}
    assert_valid(tmp_path)


# --- The sink by itself ---


def record(key: str, **document: Any) -> Record:
    return Record(key, document, 100)


def sink_in(folder: Path) -> WarcSink:
    return WarcSink.from_settings({"SITE_DATA_DIR": str(folder)})


def write(folder: Path, *batches: Sequence[Record]) -> list[Verdict]:
    """Write the batches with a sink that is opened and closed."""

    async def scenario() -> list[Verdict]:
        sink = sink_in(folder)
        await sink.open()
        try:
            return [verdict for batch in batches for verdict in await sink.write(batch)]
        finally:
            await sink.close()

    return asyncio.run(scenario())


def test_a_second_delivery_appends_and_the_last_counts(tmp_path: Path) -> None:
    """Nothing in a WARC file is ever changed."""
    write(tmp_path, [record("a", body="first")], [record("a", body="second")])
    write(tmp_path, [record("a", body="third")])
    assert [found.block for found in written(tmp_path, "resource", "a")] == [b"first", b"second", b"third"]
    found = WarcResults(tmp_path / "warc").get("a")
    assert found is not None
    assert found["body"] == "third"


def test_what_stands_in_headers_cannot_forge_others(tmp_path: Path) -> None:
    """Line ends and odd signs of a key, a URL and a type are written as URIs write them, or not at all."""
    odd = "x\r\nWARC-Type: forged \ud800ä"
    write(tmp_path, [record(odd, body="text", url=f"http://h.test/{odd}", content_type=odd)])
    (found,) = written(tmp_path, "resource")
    assert "%0D%0AWARC-Type:%20forged%20?%C3%A4" in found.headers["WARC-Target-URI"]
    assert found.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert found.headers["WARC-Type"] == "resource"
    assert_valid(tmp_path)


WRITER = """
import asyncio, sys
from docs.examples.warc_sink import WarcSink
from site_spider.contracts.sink import Record

async def write():
    sink = WarcSink.from_settings({"SITE_DATA_DIR": sys.argv[1], "SITE_WARC_MAX_BYTES": 100_000})
    await sink.open()
    for number in range(10**9):
        await sink.write([Record(f"{number}-{i}", {"body": f"{number} {i} " * 200}, 1) for i in range(20)])
        print(number, flush=True)

asyncio.run(write())
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """Every acknowledged result is there after the next start, and all files are valid."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) == 40:
                writer.kill()
                break
        acknowledged = max(40, *map(int, writer.stdout.read().split()), 0)
    write(tmp_path, [record("after", status=200)])
    assert_valid(tmp_path)
    keys = {found.key for found in written(tmp_path, "metadata")}
    assert keys >= {f"{number}-{i}" for number in range(acknowledged + 1) for i in range(20)} | {"after"}


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


def test_a_file_that_another_process_writes_is_left_alone(tmp_path: Path) -> None:
    """Any number of sinks share the folder."""

    async def scenario() -> None:
        first, second = sink_in(tmp_path), sink_in(tmp_path)
        for sink in (first, second, first, second):
            await sink.open()
            assert (await sink.write([record("a", body="text")]))[0].answer is Answer.ACKNOWLEDGED
        assert [path.suffix for path in files(tmp_path)] == [".open", ".open"]
        await first.close()
        await second.close()

    asyncio.run(scenario())
    assert len(written(tmp_path, "resource", "a")) == 4
    assert_valid(tmp_path)


def test_a_full_disk_is_an_outage_and_leaves_valid_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the setting; the batch that is tried again later is written to a new file."""

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        sink = sink_in(tmp_path)
        await sink.open()
        await sink.write([record("a", body="before")])
        with monkeypatch.context() as patched:
            patched.setattr(warc_sink.os, "fsync", full)
            with pytest.raises(SinkUnavailable, match=r"SITE_DATA_DIR.*No space left"):
                await sink.write([record("b", body="meanwhile")])
        await sink.write([record("b", body="meanwhile")])
        await sink.close()

    asyncio.run(scenario())
    assert {found.key for found in written(tmp_path, "resource")} == {"a", "b"}
    assert_valid(tmp_path)


def test_a_file_that_was_removed_is_noticed(tmp_path: Path) -> None:
    """What goes into it would be lost without an error."""

    async def scenario() -> None:
        sink = sink_in(tmp_path)
        await sink.open()
        await sink.write([record("a", body="text")])
        files(tmp_path)[0].unlink()
        with pytest.raises(SinkUnavailable, match="was removed"):
            await sink.write([record("b", body="text")])
        await sink.write([record("b", body="text")])
        await sink.close()

    asyncio.run(scenario())
    assert [found.key for found in written(tmp_path, "resource")] == ["b"]


def test_a_size_that_is_none_is_refused_at_the_start() -> None:
    """The setting of the sink's own is checked like any other."""
    with pytest.raises(ConfigError, match="SITE_WARC_MAX_BYTES"):
        WarcSink.from_settings({"SITE_DATA_DIR": "data", "SITE_WARC_MAX_BYTES": "1 GB"})


def test_a_copy_of_the_example_is_found_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever Python finds modules; the root of the project is such a place."""
    shutil.copy(ROOT / "docs" / "examples" / "warc_sink.py", tmp_path / "sinks_of_mine.py")
    monkeypatch.syspath_prepend(tmp_path)
    local, mine = parts.sinks(settings_for(tmp_path, SITE_SINKS="local,sinks_of_mine.WarcSink"))
    assert (local.name, mine.name) == ("local", "warc")
    assert os.fspath(tmp_path) in str(sys.modules["sinks_of_mine"].__file__)
