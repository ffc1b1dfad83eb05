"""Real Kafka and Elasticsearch, each in a folder of its own: one can start while the other is killed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "task_shell" / "servers.sh"
COMMAND_SECONDS = 300
FASTER_START = {"SITE_SERVERS_ELASTICSEARCH_JAVA_OPTS": "-XX:TieredStopAtLevel=1"}


class Server:
    """One server, and how often it was away for how long."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.outages: list[tuple[float, float]] = []  # from the kill to when it was ready again
        self.away_since: float | None = None
        self._environment = os.environ | FASTER_START | {"SITE_SERVERS_DIR": str(folder)}
        self._log = folder / f"{name}.out"
        folder.mkdir(parents=True)
        self._starting: subprocess.Popen[bytes] | None = None

    def command(self, verb: str) -> str:
        """What `servers.sh VERB NAME` prints. Raises CalledProcessError, with its words in the log."""
        with self._log.open("ab") as log:
            finished = subprocess.run(
                [str(SCRIPT), verb, self.name],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                timeout=COMMAND_SECONDS,
                start_new_session=True,
                check=True,
            )
        return finished.stdout.decode()

    def variables(self) -> dict[str, str]:
        """The settings that name it."""
        lines = self.command("env").splitlines()
        pairs = (line.removeprefix("export ").partition("=") for line in lines)
        return {name: value.strip("'\"") for name, _, value in pairs}

    def kill(self) -> None:
        """As a machine that loses its power."""
        self.away_since = time.time()
        self.command("kill")

    def begin_start(self) -> None:
        """Start it again; `look` notes when it is there."""
        with self._log.open("ab") as log:
            self._starting = subprocess.Popen(
                [str(SCRIPT), "start", self.name],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def look(self) -> None:
        """Note the end of an outage. Raises RuntimeError when the server cannot be started again."""
        if self._starting is None or (code := self._starting.poll()) is None:
            return
        self._starting = None
        if code:
            raise RuntimeError(f"{self.name} could not be started again: see {self._log}")
        assert self.away_since is not None
        self.outages.append((self.away_since, time.time()))
        self.away_since = None

    def end(self) -> None:
        """Stop it, whatever it does just now."""
        if self._starting is not None:
            self._starting.terminate()
            self._starting.wait(COMMAND_SECONDS)
        self.command("kill")


def start_all(servers: Iterable[Server]) -> None:
    """Start them side by side."""
    waiting = list(servers)
    for server in waiting:
        server.away_since = time.time()
        server.begin_start()
    while any(server.away_since for server in waiting):
        for server in waiting:
            server.look()
        time.sleep(0.1)
    for server in waiting:
        server.outages.clear()
