"""The process that extracts: what it finds, and what a page cannot do to it."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from site_spider.sources import extraction_process as worker
from site_spider.sources.extraction import FoundLink
from site_spider.sources.extraction_process import Extractor, NotExtracted, PageBody, line
from site_spider.sources.library import parse_source
from tests.in_process import virtual_time
from tests.in_process.extraction import in_a_thread

SOURCE = b"""
match: {hosts: [shop.test]}
follow: [{}]
items: [{fields: {title: {css: title, then: [strip, {join: ""}]}, n: {css: b, list: true, type: number}}}]
"""
SLOW = b"match: {hosts: [shop.test]}\nitems: [{fields: {a: {css: 'div ~ div ~ div'}}}]"
URL = "http://shop.test/"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of CPU time is met, however slow the machine."""
    monkeypatch.setattr(worker, "_WALL_SECONDS", 300.0)


def test_it_finds_and_goes_on_after_pages_that_kill_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page that took too long fails alone, soon, and with the loop free meanwhile. It is told no secret."""
    monkeypatch.setenv("SITE_CONSOLE_TOKEN", "secret")
    source, slow = parse_source(SOURCE, Path("a.yaml")), parse_source(SLOW, Path("b.yaml"))
    good = PageBody(URL, "<title> é </title><b>1.5</b><a href=/x>".encode(), "text/html; charset=utf-8")
    bad = PageBody(URL, b"<div>x</div>" * 16_000, "text/html; charset=utf-8")
    beats = 0

    async def watch() -> None:
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    async def run() -> None:
        extractor = Extractor(cpu_seconds=0.5)
        watching = asyncio.create_task(watch())
        try:
            before, failed = await extractor.extract(source, good), await extractor.extract(slow, bad)
            assert before == await extractor.extract(source, good)
            assert before.items == [{"title": "é", "n": [1.5]}]
            assert before.links == [FoundLink("http://shop.test/x", 0)]
            (lost,) = failed.lost
            assert re.search(r"source b .* this page takes more than 0\.5 s of CPU", lost)
            assert extractor._process is not None
            told = Path(f"/proc/{extractor._process._running.pid}/environ").read_bytes()
            assert b"PATH=" in told
            assert b"SITE_" not in told
        finally:
            watching.cancel()
            await extractor.close()

    asyncio.run(asyncio.wait_for(run(), 300))
    assert beats > 10


@pytest.mark.parametrize("stands_still_seconds", [0, 3_600])
def test_a_page_is_given_its_time_though_the_process_stood_still(
    monkeypatch: pytest.MonkeyPatch, stands_still_seconds: float
) -> None:
    """As by Ctrl-Z, or in a container that was paused. Without that, it is given no more."""
    monkeypatch.setattr(worker, "_WALL_SECONDS", 30.0)
    answers, ended = Mock(), Mock(return_value=-signal.SIGKILL)

    async def ask(*_: Any) -> dict[str, Any]:
        await asyncio.sleep(2 if stands_still_seconds else 31)
        return {"title": "x"}

    async def end() -> int:
        return int(ended())

    async def start() -> Any:
        return answers

    answers.ask, answers.end = ask, end
    monkeypatch.setattr(worker._Worker, "start", start)

    async def run() -> list[Any]:
        extractor, now = Extractor(), asyncio.get_running_loop().time
        pages = [extractor.read(PageBody(URL, b"x", "text/html"), "plain", now() + 60) for _ in range(2)]
        reading = asyncio.gather(*pages, return_exceptions=True)
        await asyncio.sleep(1)
        virtual_time.skip(stands_still_seconds)
        return await reading

    said = [answer if isinstance(answer, dict) else str(answer) for answer in virtual_time.run(run())]
    too_slow = "its text could not be read: this page takes more than 30 s"
    assert said == ([{"title": "x"}] * 2 if stands_still_seconds else [too_slow] * 2)


def test_a_host_whose_pages_are_all_too_slow_holds_up_the_others_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = Mock()  # the connection ends with it, as it does by the limit of CPU time
    ended.wait.return_value = -signal.SIGPROF
    monkeypatch.setattr(worker, "_started", lambda _connection: ended)

    async def run() -> None:
        extractor = Extractor()
        try:
            for _ in range(2):
                together = [extractor.read(PageBody(URL, b"x", "text/html"), "plain") for _ in range(6)]
                said = [str(one) for one in await asyncio.gather(*together, return_exceptions=True)]
                assert ["takes more than" in one for one in said] == [True] * 5 + [False]
                assert "is not read: 5 pages of its host" in said[5]
                with pytest.raises(NotExtracted, match="takes more than"):
                    await extractor.read(PageBody("http://other.test/", b"x", "text/html"), "plain")
                monkeypatch.setattr(worker.runtime, "monotonic", lambda: 1e9)
        finally:
            await extractor.close()

    asyncio.run(asyncio.wait_for(run(), 300))


async def test_a_process_that_cannot_be_started_is_no_page_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    page, extractor = PageBody(URL, b"<title>a</title>", "text/html"), Extractor()
    with monkeypatch.context() as broken:
        broken.setattr(worker, "_started", Mock(side_effect=OSError(24, "Too many open files")))
        for _ in range(6):
            with pytest.raises(NotExtracted, match=r"the process that extracts cannot be started: .* open files"):
                await extractor.read(page, "plain")
    try:
        assert (await extractor.read(page, "plain"))["title"] == "a"
    finally:
        await extractor.close()


def test_it_works_within_a_lower_limit_of_memory_than_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ulimit -v` sets one, or LimitAS= of systemd: only root may raise it."""
    limit, serve = Mock(side_effect=[ValueError("not allowed to raise maximum limit"), None]), Mock()
    monkeypatch.setattr(worker, "resource", Mock(setrlimit=limit))
    monkeypatch.setattr(worker, "signal", Mock())
    monkeypatch.setattr(worker, "serve", serve)
    ours, theirs = socket.socketpair()
    with ours, theirs.makefile() as given:
        theirs.close()
        monkeypatch.setattr(worker.sys, "stdin", given)
        worker.main()
        serve.call_args.args[0].detach()
    assert limit.call_count == 2


def test_a_cancelled_page_does_not_answer_for_the_next() -> None:
    source = parse_source(SOURCE, Path("a.yaml"))

    async def run() -> None:
        extractor = Extractor()
        pages = [PageBody(URL, f"<title>{n}</title>".encode(), "text/html; charset=utf-8") for n in range(3)]
        first = asyncio.create_task(extractor.extract(source, pages[0]))
        while not (extractor._process and extractor._process._known):  # until it is sent
            await asyncio.sleep(0)
        first.cancel()
        found = await asyncio.gather(*(extractor.extract(source, page) for page in pages[1:]))
        assert [one.items[0]["title"] for one in found] == ["1", "2"]
        await extractor.close()

    asyncio.run(asyncio.wait_for(run(), 300))


def test_an_error_of_ours_loses_one_page_and_not_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "extract", Mock(side_effect=KeyError("x\ud800")))
    ours, theirs = socket.socketpair()
    with ours, ours.makefile("rb") as stream, ThreadPoolExecutor() as pool:
        serving = pool.submit(worker.serve, theirs)
        source = parse_source(SOURCE, Path("a.yaml"))
        head = {"name": "a", "seconds": 5, "url": URL, "content_type": "text/html", "wants_links": True}
        head |= {
            "follow_nofollow": False,
            "bytes": 3,
            "source": source.model_dump(mode="json", by_alias=True, exclude_unset=True),
        }
        for _ in range(2):
            ours.sendall(line(head) + b"<p>")
            assert json.loads(stream.readline())["lost"] == ["a could not be applied: KeyError: \"'x\\\\ud800'\""]
        ours.shutdown(socket.SHUT_WR)
        serving.result(300)


@in_a_thread()
def found_in(*asked: tuple[bytes, PageBody]) -> list[Any]:
    """The items of one page after the other, each with the text of its source."""

    async def run() -> list[Any]:
        extractor = Extractor()
        try:
            sources = {text: parse_source(text, Path("a.yaml")) for text, _ in asked}
            return [(await extractor.extract(sources[text], page)).items for text, page in asked]
        finally:
            await extractor.close()

    return asyncio.run(asyncio.wait_for(run(), 300))


def test_a_changed_source_is_sent_again() -> None:
    page = PageBody(URL, b"<i>1</i><b>2</b>", "text/html; charset=utf-8")
    texts = [b"match: {hosts: [a.test]}\nitems: [{fields: {x: {css: %s}}}]" % tag for tag in (b"i", b"b")]
    assert found_in(*((text, page) for text in texts)) == [[{"x": "1"}], [{"x": "2"}]]


def test_pages_are_decoded_as_the_result_is() -> None:
    pages = [
        ("<title>é</title>".encode("utf-16"), None),
        ("<title>é</title>".encode("latin-1"), "text/html; charset=iso-8859-1"),
        ("\ufeff<title>é</title>".encode(), None),
        ("<meta charset=shift_jis><title>é</title>".encode(), "text/html; charset=utf-8"),
    ]
    assert found_in(*((SOURCE, PageBody(URL, *page)) for page in pages)) == [[{"title": "é", "n": []}]] * 4
