"""The site of the race: as little work for a page as can be, so that the crawlers are what is measured.

    python -m tools.race.site CERTIFICATE

Listens on every address of this machine's loopback network, once for HTTP and once for HTTPS, and prints
the two ports. The runner speaks to it through a Track, by paths below /.site/: `reset` serves another
workload, `state` says what was asked for since, `served` which pages were served.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

import uvloop

from tools.deployment.processes import LEASH
from tools.race.workload import ORIGIN, SITE, WORKLOADS, Workload, render
from tools.site.certificate import make

_HEAD = (
    "HTTP/1.1 {status}\r\nServer: site\r\nDate: Sat, 21 Nov 2026 12:00:00 GMT\r\n"
    'Content-Type: text/html; charset=utf-8\r\nCache-Control: max-age=60\r\nETag: "5f3759df"\r\n'
    "Vary: Accept-Encoding\r\nConnection: {connection}\r\nContent-Length: "
)
_OK = _HEAD.format(status="200 OK", connection="keep-alive").encode()
_CLOSED = _HEAD.format(status="200 OK", connection="close").encode()
_MISSING = _HEAD.format(status="404 Not Found", connection="keep-alive").encode() + b"0\r\n\r\n"
_CONTROL = b"/.site/"


class Site:
    """The pages of one workload, and what was asked for."""

    def __init__(self) -> None:
        self.reset(WORKLOADS[0])

    def reset(self, workload: Workload) -> None:
        self.workload = workload
        self.pages: dict[bytes, tuple[int, int]] = {}  # by path: the number of its host, and its variant
        self.ready: dict[tuple[int, int], bytes] = {}  # by the same pair: the whole response
        self.served: set[bytes] = set()  # hosts and paths
        self.last = 0.0  # when the last page was served
        self.asked = self.missing = self.connections = 0
        self.hosts = [workload.host(number).encode() for number in range(workload.hosts)]
        count = max(1, workload.hubs)
        self.variants = [render(workload, variant) for variant in range(count)]
        for number in range(workload.seeds):
            place = number % workload.hosts, number // workload.hosts % count
            self.pages[workload.seed_path(number).encode()] = place
        for host in range(workload.hosts):
            for number in range(workload.hubs):
                path = workload.hub_path(workload.site(host), number)
                self.pages[path.encode()] = host, (number + 1) % count

    def answer(self, host: bytes, origin: bytes, path: bytes) -> bytes:
        """The whole response, and a note that it was given."""
        self.asked += 1
        place = self.pages.get(path)
        if place is None or self.hosts[place[0]] != host:
            self.missing += 1
            return _MISSING
        response = self.ready.get(place)
        if response is None:
            response = self.ready[place] = self._response(place, origin)
        self.served.add(host + path)
        self.last = time.time()
        return response

    def _response(self, place: tuple[int, int], origin: bytes) -> bytes:
        host, variant = place
        page = self.variants[variant].replace(ORIGIN, origin.decode()).replace(SITE, self.workload.site(host))
        body = page.encode()
        return b"%b%d\r\n\r\n%b" % (_CLOSED if self.workload.tls else _OK, len(body), body)

    def state(self) -> dict[str, Any]:
        """Counts, and when the last page was served."""
        counts = {"asked": self.asked, "missing": self.missing, "connections": self.connections}
        return {**counts, "served": len(self.served), "last": self.last}

    def control(self, path: bytes) -> bytes:
        url = urlsplit(path.decode())
        answer: Any = None
        if url.path.endswith("/reset"):
            given = dict(parse_qsl(url.query))
            workload = next(one for one in WORKLOADS if one.name == given["workload"])
            numbers = {name: int(value) for name, value in given.items() if name != "workload"}
            self.reset(replace(workload, **numbers))
        elif url.path.endswith("/served"):
            answer = [page.decode() for page in self.served]
        else:
            answer = self.state()
        body = json.dumps(answer).encode()
        return b"%b%d\r\n\r\n%b" % (_OK, len(body), body)


class Connection(asyncio.Protocol):
    """One client; requests may come in pieces, or several at once."""

    def __init__(self, site: Site, scheme: str) -> None:
        self._site = site
        self._scheme = scheme
        self._buffer = b""
        self._host = self._origin = b""
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        host, port = transport.get_extra_info("sockname")[:2]
        self._host = host.encode()
        self._origin = f"{self._scheme}://{host}:{port}".encode()
        self._site.connections += 1

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        while (end := data.find(b"\r\n\r\n")) >= 0:
            path = data[4 : data.index(b" ", 4)]  # only GET is asked for
            self._serve(path)
            data = data[end + 4 :]
        self._buffer = data

    def _serve(self, path: bytes) -> None:
        if path.startswith(_CONTROL):
            self._transport.write(self._site.control(path))
            self._transport.close()
            self._site.connections -= 1
            return
        self._transport.write(self._site.answer(self._host, self._origin, path))
        if self._site.workload.tls:
            self._transport.close()


async def serve(certificate: str) -> None:
    site = Site()
    loop = asyncio.get_running_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    plain = await loop.create_server(lambda: Connection(site, "http"), "0.0.0.0", 0, backlog=4096)
    secure = await loop.create_server(lambda: Connection(site, "https"), "0.0.0.0", 0, backlog=4096, ssl=context)
    ports = [server.sockets[0].getsockname()[1] for server in (plain, secure)]
    print(*ports, flush=True)
    await asyncio.Event().wait()


# --- the runner's side ----------------------------------------------------------------------------


class State(NamedTuple):
    asked: int
    missing: int
    served: int  # different pages
    connections: int
    last: float  # when the last page was served


class Track:
    def __init__(self, folder: Path, workloads: Sequence[Workload] = WORKLOADS) -> None:
        tls_hosts = max(workload.hosts for workload in (*WORKLOADS, *workloads) if workload.tls)
        addresses = [WORKLOADS[0].host(number) for number in range(tls_hosts)]
        self.authority, certificate = make(folder, addresses)
        self.process = subprocess.Popen(
            [*LEASH, sys.executable, "-m", "tools.race.site", str(certificate)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        ports = self.process.stdout.readline().split()
        if len(ports) != 2:
            raise RuntimeError(f"the site did not start: exit code {self.process.wait()}")
        self.plain_port, self.secure_port = map(int, ports)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()  # closes its output as well

    def port(self, workload: Workload) -> int:
        return self.secure_port if workload.tls else self.plain_port

    def reset(self, workload: Workload) -> None:
        self._ask(f"reset?workload={workload.name}&total={workload.total}&hosts={workload.hosts}")

    def state(self) -> State:
        return State(**self._ask("state"))

    def served(self) -> list[str]:
        found: list[str] = self._ask("served")
        return found

    def _ask(self, path: str) -> Any:
        with closing(http.client.HTTPConnection("127.0.0.1", self.plain_port, timeout=60)) as connection:
            connection.request("GET", f"/.site/{path}")
            return json.loads(connection.getresponse().read())


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
