"""Real servers, each in a folder of its own: one can start while another one is killed."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "task_shell" / "servers.sh"
COMMAND_SECONDS = 300
STARTS = {
    "SITE_SERVERS_ELASTICSEARCH_JAVA_OPTS": "-XX:TieredStopAtLevel=1",  # sooner
    "SITE_SERVERS_START_TIMEOUT_SECONDS": "600",  # on a busy machine the usual 120 s ended a soak
}
NOTHING: Mapping[str, str] = {}


class Server:
    """One server, and how often it was away for how long. As in storm.Watched."""

    waits_for = ""

    def __init__(
        self, name: str, folder: Path, *, title: str = "", variables: Mapping[str, str] = NOTHING
    ) -> None:
        self.name = name
        self.title = title or name
        self.outages: list[tuple[float, float]] = []  # from the kill to when it was ready again
        self.away_since: float | None = None
        self._environment = os.environ | STARTS | {"SITE_SERVERS_DIR": str(folder), **variables}
        self._log = folder / f"{name}.out"
        folder.mkdir(parents=True)
        self._starting: subprocess.Popen[bytes] | None = None

    @property
    def is_away(self) -> bool:
        """As in Watched."""
        return self.away_since is not None

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
        """As in Watched. Raises RuntimeError when the server cannot be started again."""
        if self._starting is None or (code := self._starting.poll()) is None:
            return
        self._starting = None
        if code:
            raise RuntimeError(f"{self.title} could not be started again: see {self._log}")
        assert self.away_since is not None
        self.outages.append((self.away_since, time.time()))
        self.away_since = None

    def end(self) -> None:
        """Stop it, whatever it does just now."""
        if self._starting is not None:
            self._starting.terminate()
            self._starting.wait(COMMAND_SECONDS)
        self.command("kill")


def brokers(folder: Path, count: int) -> list[Server]:
    """One Kafka, or several as one cluster, of which a majority has to live."""
    if count == 1:
        return [Server("kafka", folder / "servers-kafka")]
    ports = free_ports(2 * count)
    voters = ",".join(f"{node}@127.0.0.1:{ports[2 * node - 1]}" for node in range(1, count + 1))
    found = []
    for node in range(1, count + 1):
        place = folder / f"servers-kafka-{node}"
        properties = (
            f"node.id={node}",
            f"controller.quorum.voters={voters}",
            f"default.replication.factor={count}",
            f"offsets.topic.replication.factor={count}",
            f"transaction.state.log.replication.factor={count}",
            "min.insync.replicas=2",
            "transaction.state.log.min.isr=2",
        )
        variables = {"SITE_SERVERS_KAFKA_PROPERTIES": "\n".join(properties)}
        found.append(Server("kafka", place, title=f"kafka {node}", variables=variables))
        (place / "kafka").mkdir()  # all have to know the ports of all
        kept = f"client={ports[2 * node - 2]}\ncontroller={ports[2 * node - 1]}\n"
        (place / "kafka" / "ports").write_text(kept)
    return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, below those that the kernel gives to outgoing connections."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found += [] if port in found else [port]
    return found


def start_all(servers: Iterable[Server]) -> None:
    """Start them side by side."""
    waiting = list(servers)
    for server in waiting:
        server.away_since = time.time()
        server.begin_start()
    while any(server.is_away for server in waiting):
        for server in waiting:
            server.look()
        time.sleep(0.1)
    for server in waiting:
        server.outages.clear()
