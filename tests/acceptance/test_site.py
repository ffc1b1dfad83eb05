"""The loopback site itself, asked through raw sockets."""

from __future__ import annotations

import gzip
import json
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import brotli
import pytest

from tools.deployment.deployment import wait_until
from tools.site.exchange import host_name
from tools.site.expected import expected
from tools.site.handle import Site, count_by_url
from tools.site.pages import VARIANTS

pytestmark = pytest.mark.xdist_group("site")  # they share one
HOSTS = 5


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site") / "record.jsonl", hosts=HOSTS) as running:
        yield running


class Client:
    """A connection to one host."""

    def __init__(self, site: Site, host: int = 0) -> None:
        self.socket = socket.create_connection((host_name(host), site.port), timeout=300)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, path: str, method: str = "GET", headers: str = "", body: bytes = b"") -> None:
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        self.socket.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}{length}\r\n".encode() + body)

    def head(self) -> tuple[int, dict[str, list[str]]]:
        status = int(self.file.readline().split()[1])
        headers: dict[str, list[str]] = {}
        while line := self.file.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            headers.setdefault(name.lower(), []).append(value.strip())
        return status, headers

    def answer(self) -> tuple[int, dict[str, list[str]], bytes]:
        status, headers = self.head()
        return status, headers, self.file.read(int(headers.get("content-length", ["0"])[0]))

    def ask(
        self, path: str, method: str = "GET", headers: str = "", body: bytes = b""
    ) -> tuple[int, dict[str, list[str]], bytes]:
        self.send(path, method, headers, body)
        return self.answer()


def document(status: int, headers: dict[str, list[str]], body: bytes) -> dict[str, object]:
    """A result document as a right crawler would write it."""
    return {"status": status, "headers": json.dumps(headers), "body": body.decode(), "description": None}


def test_a_flaky_page_fails_as_often_as_its_path_says(site: Site) -> None:
    """Two 429 with Retry-After, then the page, for each host by itself."""
    with Client(site) as client, Client(site, 1) as other:
        statuses = [client.ask("/flaky/429/2/x") for _ in range(4)]
        assert other.ask("/flaky/429/2/x")[0] == 429
    assert [status for status, _, _ in statuses] == [429, 429, 200, 200]
    assert statuses[0][1]["retry-after"] == ["1"]


def test_a_reset_comes_in_the_middle_of_the_body(site: Site) -> None:
    """The status line arrives, then a part of the body, then the reset."""
    with Client(site) as client:
        client.send("/fault/reset/0/x")
        status, headers = client.head()
        with pytest.raises(ConnectionResetError):
            client.file.read(int(headers["content-length"][0]))
    assert status == 200


def test_a_short_body_ends_before_its_content_length(site: Site) -> None:
    """A thousand bytes are missing when the connection closes."""
    with Client(site) as client:
        _, headers, body = client.ask("/fault/short/0/x")
    assert int(headers["content-length"][0]) == len(body) + 1000


def test_a_connection_can_close_without_an_answer(site: Site) -> None:
    """Not a byte comes."""
    with Client(site) as client:
        client.send("/fault/no-answer/0/x")
        assert client.file.read() == b""


def test_more_can_come_than_content_length_says(site: Site) -> None:
    """Only what it covers is expected to be stored."""
    with Client(site) as client:
        _, _, body = client.ask("/cut-off/close/x")
        rest = client.file.read()
    wanted = expected(site.url("/cut-off/close/x"))
    assert rest
    assert body.decode() == wanted.body


def test_chunks_add_up_to_the_page(site: Site) -> None:
    """Transfer-Encoding: chunked, with several chunks."""
    with Client(site) as client:
        client.send("/chunked/x", headers="Connection: close\r\n")
        _, headers = client.head()
        parts = []
        while size := int(client.file.readline(), 16):
            parts.append(client.file.read(size))
            client.file.read(2)
    assert headers["transfer-encoding"] == ["chunked"]
    assert len(parts) > 1
    assert b"".join(parts).decode() == expected(site.url("/chunked/x")).body


@pytest.mark.parametrize(
    ("name", "unpack"),
    [
        ("gzip", gzip.decompress),
        ("deflate", zlib.decompress),
        ("deflate-raw", lambda data: zlib.decompress(data, -15)),
        ("br", brotli.decompress),
    ],
)
def test_compressed_pages_unpack_to_the_expected_text(site: Site, name: str, unpack: object) -> None:
    """Whatever the Content-Encoding."""
    with Client(site) as client:
        _, headers, body = client.ask(f"/compressed/{name}/x")
    assert headers["content-encoding"] == [name.removesuffix("-raw")]
    assert callable(unpack)
    assert unpack(body).decode() == expected(site.url(f"/compressed/{name}/x")).body


def test_the_cut_gzip_page_can_be_unpacked_in_part(site: Site) -> None:
    """The stream has no end, but its beginning is the page's."""
    with Client(site) as client:
        _, _, body = client.ask("/cut-gzip/x")
    unpacker = zlib.decompressobj(31)
    text = unpacker.decompress(body).decode()
    assert not unpacker.eof
    assert not expected(site.url("/cut-gzip/x")).wrong_body(text)


@pytest.mark.parametrize("name", VARIANTS)
def test_encoded_pages_decode_to_the_expected_text(site: Site, name: str) -> None:
    """In the encoding that the page is written in, the byte order mark put aside."""
    with Client(site) as client:
        _, _, body = client.ask(f"/encoded/{name}/x")
    variant = VARIANTS[name]
    text = body[len(variant.bom) :].decode(variant.codec)
    assert variant.text in text
    assert not expected(site.url(f"/encoded/{name}/x")).wrong_body(text)


def test_the_cookie_page_wants_its_cookies_back(site: Site) -> None:
    """Two Set-Cookie lines; without them 403."""
    with Client(site) as client:
        status, headers, _ = client.ask("/cookie/start/7")
        cookies = "; ".join(line.split(";")[0] for line in headers["set-cookie"])
        refused = client.ask("/cookie/end/7")[0]
        found = client.ask("/cookie/end/7", headers=f"Cookie: {cookies}\r\n")[0]
    assert (status, len(headers["set-cookie"]), refused, found) == (302, 2, 403, 200)


def test_a_post_is_echoed_with_its_own_header_lines(site: Site) -> None:
    """The echo is what the model expects of the same seed."""
    with Client(site) as client:
        found = document(*client.ask("/echo/x", "POST", "X-Order: 5\r\n", "größe".encode()))
    wanted = expected(site.url("/echo/x"), "POST", headers={"x-order": ["5"]}, body="größe".encode())
    assert wanted.mismatches(found) == []


def test_repeated_header_lines_are_kept_in_order(site: Site) -> None:
    """Three lines of one name, whose case differs."""
    with Client(site) as client:
        _, headers, _ = client.ask("/repeated/x")
    assert headers["x-part"] == ["one", "two, three", "four"]


def test_the_record_tells_every_request(site: Site) -> None:
    """Host, method, kind, status, size and the headers of interest."""
    with Client(site, 2) as client:
        _, _, body = client.ask("/page/recorded", headers="User-Agent: me\r\nCookie: a=1\r\n")
    site.wait_for(1)
    found = wait_until(
        lambda: [entry for entry in site.entries() if entry.path == "/page/recorded"], 300, "the entry"
    )
    (entry,) = found
    assert entry.url == site.url("/page/recorded", 2)
    assert (entry.method, entry.kind, entry.status, entry.body_bytes) == ("GET", "page", 200, len(body))
    assert (entry.user_agent, entry.cookie, entry.attempt, entry.in_progress) == ("me", "a=1", 0, 1)
    assert entry.time <= entry.sent <= time.time()


def test_the_record_is_whole_after_the_end_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    """What was asked just before SIGTERM is there; the port stays."""
    site = Site(tmp_path / "record.jsonl", hosts=2)
    for _ in range(2):
        with site, Client(site, 1) as client:
            client.ask("/page/last")
    assert count_by_url(site.entries()) == {site.url("/page/last", 1): 2}
