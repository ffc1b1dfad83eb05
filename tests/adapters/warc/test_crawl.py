"""Archives of a crawl by a real process: the bytes of the wire, over a kill -9."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from site_spider.service import config as parts
from tests.adapters.raw_server import Asked, answering
from tests.adapters.warc.test_sink import ROOT, assert_valid, files, written
from tests.hostile.test_framing import PLAIN
from tests.in_process.engine import crawl, lag, produce, settings_for

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
PACKED = gzip.compress(b"<p>Gr\xfc\xdfe" * 400, mtime=0)
LARGE = gzip.compress(b"<p>large page " * 60_000, mtime=0)
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"


def page(head: bytes, body: bytes, status: bytes = b"200 OK") -> bytes:
    lines = b"HTTP/1.1 %b\r\nConnection: close\r\n%bContent-Length: %d\r\n\r\n"
    return lines % (status, head, len(body)) + body


ODD_LINES = b"content-encoding: gzip\r\nX-Odd:  a \xff\r\nset-cookie: a=b\r\nSet-Cookie: c=d\r\n"
ANSWERS = {
    "packed": page(ODD_LINES, PACKED),
    "large": page(b"Content-Encoding: gzip\r\n", LARGE),
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n<p>ch\r\n4\r\nunks\r\n0\r\n\r\n",
    "moved": page(b"Location: /page/there\r\n", b"up", b"301 Moved"),
    "gone": page(b"", b"gone", b"404 Gone"),
    "picture": page(b"Content-Type: image/png\r\n", PNG),
    "silent": b"",
    "cut": HEAD + b"Content-Length: 9\r\n\r\ncut",
    "odd": b"HTTP/1.1 200 OK\nconnection: close\nx-odd: 1\nContent-Type: text/plain\n\nodd page",
}


def answer_to(asked: Asked) -> bytes:
    """Every request of a path has the same answer."""
    found = ANSWERS.get(asked.path.split("/")[1])
    return page(b"Content-Type: text/html\r\n", f"<p>{asked.path}".encode()) if found is None else found


KINDS = ("page", *ANSWERS)


def crawler(folder: Path, **settings: Any) -> subprocess.Popen[bytes]:
    own = {
        "SITE_DATA_DIR": str(folder),
        "SITE_SINKS": "local,warc",
        "SITE_ALLOW_PRIVATE_HOSTS": True,
        "RETRY_TIMES": 0,
        "SITE_SINK_FLUSH_SECONDS": 0.1,
        "LOG_LEVEL": "WARNING",
        **settings,
    }
    options = [word for name, value in own.items() for word in ("-s", f"{name}={value}")]
    command = [sys.executable, "-m", "scrapy", "crawl", "crawl_spider", *options]
    usual = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
    return subprocess.Popen(command, cwd=ROOT, env=usual)


def wait(condition: Any, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, "the crawl has ended"
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_crawl_is_archived_as_it_was_on_the_wire_over_a_kill_9(tmp_path: Path) -> None:
    """Nothing is missing, no record is half, and what is fetched again with the same payload is a revisit."""
    log, is_dead = parts.seed_log(settings_for(tmp_path)), threading.Event()

    def answer(asked: Asked) -> bytes:
        """However fast the first process is, it does not end before it is killed."""
        if asked.path == "/page/39":
            is_dead.wait(300)
        return answer_to(asked)

    with answering(answer) as address, answering(answer_to) as odd:
        at = {kind: odd if kind == "odd" else address for kind in KINDS}
        paths = [f"/{kind}/{n}" for n in range(40) for kind in KINDS if kind != "large" or n < 3]
        seeds = [{"url": at[path.split("/")[1]] + path, "meta": {"url_id": path}} for path in paths]
        produce(log, "seeds", seeds)
        with crawler(tmp_path, CONCURRENT_REQUESTS=4, CONCURRENT_REQUESTS_PER_DOMAIN=4) as first:
            wait(lambda: sum(path.stat().st_size for path in files(tmp_path)) > 30_000, first)
            first.kill()
        is_dead.set()
        assert lag(log) > 0
        with crawler(tmp_path) as second:
            wait(lambda: lag(log) == 0, second)
            second.send_signal(signal.SIGTERM)
            assert second.wait(300) == 0
    assert_valid(tmp_path)
    responses = {(one.key, urlsplit(one.headers["WARC-Target-URI"]).path): one for one in written(tmp_path, "response")}
    for path in paths:
        assert_archived(path, responses)
    assert {one.key for one in written(tmp_path, "metadata")} == set(paths)
    assert_repeats(tmp_path)


def assert_archived(path: str, responses: dict[tuple[str, str], Any]) -> None:
    kind = path.split("/")[1]
    if kind == "silent":  # nothing answered
        assert (path, path) not in responses
        return
    found = responses[path, path]
    head, _, body = answer_to(Asked("GET", path, {}, b"")).partition(b"\r\n\r\n" if kind != "odd" else b"\n\n")
    assert found.headers.get("WARC-Truncated") == ("disconnect" if kind == "cut" else None)
    if kind == "chunks":
        head, body = head.replace(b"Transfer-", b"X-Orig-Transfer-"), b"<p>chunks"
    if kind == "odd":
        assert found.block == head + b"\n\n" + body
        return
    assert found.payload == body
    assert found.headers["WARC-IP-Address"] == "127.0.0.1"
    if kind == "moved":
        assert (path, "/page/there") in responses
    assert found.block == head + b"\r\n\r\n" + body


def assert_repeats(folder: Path) -> None:
    requests = Counter(one.key for one in written(folder, "request"))
    answers = Counter(one.key for kind in ("response", "revisit") for one in written(folder, kind))
    assert not requests - answers
    assert (answers - requests).total() <= 1, "the kill may fall between an answer and its request"
    for one in written(folder, "request"):
        assert one.block.startswith(b"GET /")
        assert f"Host: {urlsplit(one.headers['WARC-Target-URI']).netloc}\r\n".encode() in one.block
    silent, well = (json.loads(written(folder, "metadata", key)[0].block) for key in ("/silent/1", "/page/7"))
    assert (silent["status"], bool(silent["description"])) == (None, True)
    assert (well["status"], "body" in well) == (200, False)


def test_a_check_that_finds_a_page_unchanged_is_a_revisit(tmp_path: Path) -> None:
    """As the site says, or by the payload; a page that has changed is a response again."""
    bodies = {"/tagged": b"as ever", "/same": b"as ever"}

    def answer(asked: Asked) -> bytes:
        if asked.headers.get("if-none-match") == "x":
            return HEAD.replace(b"200 OK", b"304 Not Modified") + b"\r\n"
        return page(b"ETag: x\r\n" if asked.path == "/tagged" else b"", bodies[asked.path])

    settings = {"SITE_SINKS": "local,warc", "SITE_ALLOW_PRIVATE_HOSTS": True}
    settings["DOWNLOAD_HANDLERS"] = {"http": PLAIN, "https": PLAIN}
    with answering(answer) as address:
        for bodies["/changes"] in (b"old", b"new"):
            seeds = [{"url": address + path, "if_changed": True, "meta": {"url_id": path}} for path in bodies]
            assert crawl(tmp_path, seeds, **settings).exit_code == 0
    assert_valid(tmp_path)
    first = {one.key: one for one in written(tmp_path, "response")}
    revisits = {one.key: one.headers for one in written(tmp_path, "revisit")}
    assert {path: said["WARC-Profile"].rpartition("/")[2] for path, said in revisits.items()} == {
        "/tagged": "server-not-modified",
        "/same": "identical-payload-digest",
    }
    for path, said in revisits.items():
        assert said["WARC-Refers-To"] == first[path].headers["WARC-Record-ID"]
    assert sorted(one.payload for one in written(tmp_path, "response", "/changes")) == [b"new", b"old"]
