"""The loopback site itself, asked through raw sockets: where it were tame, crawls would show nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.deployment.deployment import wait_until
from tools.site.exchange import host_name
from tools.site.expected import expected
from tools.site.handle import Site, count_by_url

pytestmark = pytest.mark.xdist_group("site")  # they share one
HOSTS = 5


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site") / "record.jsonl", hosts=HOSTS) as running:
        yield running


class Client:
    def __init__(self, site: Site, host: int = 0) -> None:
        self.socket = socket.create_connection((host_name(host), site.port), timeout=300)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()
        self.socket.close()

    def head(self, path: str, headers: str = "", body: bytes = b"") -> tuple[int, dict[str, list[str]]]:
        method, length = ("POST", f"Content-Length: {len(body)}\r\n") if body else ("GET", "")
        self.socket.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}{length}\r\n".encode() + body)
        status = int(self.file.readline().split()[1])
        found: dict[str, list[str]] = {}
        while line := self.file.readline().decode("latin-1").strip():
            name, _, value = line.partition(":")
            found.setdefault(name.lower(), []).append(value.strip())
        return status, found

    def ask(self, path: str, headers: str = "", body: bytes = b"") -> tuple[int, dict[str, list[str]], bytes]:
        status, found = self.head(path, headers, body)
        return status, found, self.file.read(int(found.get("content-length", ["0"])[0]))


def test_a_flaky_page_fails_as_often_as_its_path_says(site: Site) -> None:
    with Client(site) as client, Client(site, 1) as other:
        statuses = [client.ask("/flaky/429/2/x") for _ in range(4)]
        assert other.ask("/flaky/429/2/x")[0] == 429
    assert [status for status, _, _ in statuses] == [429, 429, 200, 200]
    assert statuses[0][1]["retry-after"] == ["1"]


def test_answers_break_off_or_go_on_too_long(site: Site) -> None:
    with Client(site) as client:
        status, headers = client.head("/fault/reset/0/x")
        with pytest.raises(ConnectionResetError):
            client.file.read(int(headers["content-length"][0]))
    assert status == 200
    with Client(site) as client:
        _, headers, body = client.ask("/fault/short/0/x")
    assert int(headers["content-length"][0]) == len(body) + 1000
    with Client(site) as client:
        client.socket.sendall(b"GET /fault/no-answer/0/x HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.file.read() == b""
    with Client(site) as client:
        _, _, body = client.ask("/cut-off/close/x")
        assert client.file.read()
    assert body.decode() == expected(site.url("/cut-off/close/x")).body


def test_the_record_tells_every_request(site: Site) -> None:
    with Client(site, 2) as client:
        _, _, body = client.ask("/page/recorded", headers="User-Agent: me\r\nCookie: a=1\r\n")
    found = wait_until(lambda: [entry for entry in site.entries() if entry.path == "/page/recorded"], 300, "the entry")
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
