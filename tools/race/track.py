"""The site in a process of its own, and what the runner asks it."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Self

from tools.chaos.crew import LEASH
from tools.race import machine
from tools.race.machine import Cores
from tools.race.workload import WORKLOADS, Workload
from tools.site.certificate import make

ROOT = Path(__file__).resolve().parents[2]


class State(NamedTuple):
    """What was asked for since the reset."""

    asked: int
    missing: int
    served: int  # different pages
    connections: int
    last: float  # when the last page was served; 0 while pages are being served


class Track:
    """Starts the site; ends it with the `with`."""

    def __init__(self, folder: Path, cores: Cores, workloads: Sequence[Workload] = WORKLOADS) -> None:
        tls_hosts = max(workload.hosts for workload in (*WORKLOADS, *workloads) if workload.tls)
        addresses = [WORKLOADS[0].host(number) for number in range(tls_hosts)]
        self.authority, site_certificate = make(folder, addresses)
        module = [sys.executable, "-m", "tools.race.site", str(site_certificate)]
        self.process = subprocess.Popen(
            [*LEASH, *machine.pinned(cores.servers), *module],
            cwd=ROOT,
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
        self.servers: list[int] = []  # the processes of those that run beside it

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()  # closes its output as well

    def port(self, workload: Workload) -> int:
        return self.secure_port if workload.tls else self.plain_port

    def reset(self, workload: Workload) -> None:
        """Serve this workload from now on."""
        names = ("total", "hosts")
        numbers = "".join(f"&{name}={getattr(workload, name)}" for name in names)
        self._ask(f"reset?workload={workload.name}{numbers}")

    def state(self) -> State:
        return State(**self._ask("state"))

    def times(self) -> dict[str, float]:
        """When each page was served, by host and path."""
        found: dict[str, float] = self._ask("times")
        return found

    def _ask(self, path: str) -> Any:
        with closing(http.client.HTTPConnection("127.0.0.1", self.plain_port, timeout=60)) as connection:
            connection.request("GET", f"/.site/{path}")
            return json.loads(connection.getresponse().read())


def awaited_state(track: Track) -> State:
    """The state once no page is being served any more."""
    while not (state := track.state()).last and state.served:
        time.sleep(0.02)
    return state
