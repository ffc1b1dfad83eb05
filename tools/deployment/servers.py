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

from tools.deployment.processes import logged
from tools.deployment.relay import Relay, kafka_relays

SCRIPT = Path(__file__).resolve().parents[2] / "task_shell" / "servers.sh"
COMMAND_SECONDS = 300
STARTS = {
    "SITE_SERVERS_ELASTICSEARCH_JAVA_OPTS": "-XX:TieredStopAtLevel=1",  # sooner
    "SITE_SERVERS_START_TIMEOUT_SECONDS": "600",  # on a busy machine the usual 120 s ended a soak
}


class Server:
    def __init__(self, name: str, folder: Path, *, title: str = "", **variables: str) -> None:
        self.name = name
        self.title = title or name
        self._environment = os.environ | STARTS | {"SITE_SERVERS_DIR": str(folder), **variables}
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
        lines = self.command("env").splitlines()
        pairs = (line.removeprefix("export ").partition("=") for line in lines)
        return {name: value.strip("'\"") for name, _, value in pairs}

    def begin_start(self) -> None:
        self._starting = logged([str(SCRIPT), "start", self.name], self._log, self._environment)

    def has_started(self) -> bool:
        """Whether it is ready since the last time. Raises RuntimeError when it cannot be started."""
        if self._starting is None or (code := self._starting.poll()) is None:
            return False
        self._starting = None
        if code:
            raise RuntimeError(f"{self.title} could not be started: see {self._log}")
        return True

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
    ports = _free_ports(2 * count)
    voters = ",".join(f"{node}@127.0.0.1:{ports[2 * node - 1]}" for node in range(1, count + 1))
    found = []
    for node in range(1, count + 1):
        place = folder / f"servers-kafka-{node}"
        replicated = ("default", "offsets.topic", "transaction.state.log")
        properties = (
            *(f"node.id={node}", f"controller.quorum.voters={voters}"),
            *(f"{name}.replication.factor={count}" for name in replicated),
            *("min.insync.replicas=2", "transaction.state.log.min.isr=2"),
        )
        own = {"SITE_SERVERS_KAFKA_PROPERTIES": "\n".join(properties)}
        found.append(Server("kafka", place, title=f"kafka {node}", **own))
        (place / "kafka").mkdir()  # all have to know the ports of all
        kept = f"client={ports[2 * node - 2]}\ncontroller={ports[2 * node - 1]}\n"
        (place / "kafka" / "ports").write_text(kept)
    return found


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, below those that the kernel gives to outgoing connections."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found += [] if port in found else [port]
    return found


def start_all(servers: Iterable[Server]) -> None:
    waiting = list(servers)
    for server in waiting:
        server.begin_start()
    while waiting:
        waiting = [server for server in waiting if not server.has_started()]
        time.sleep(0.1)


def redirected(settings: Mapping[str, str], ways: dict[str, Relay]) -> dict[str, str]:
    """Settings that name the servers, for the crawlers: they go by relays, which are added to `ways`."""
    found: dict[str, str] = {}
    if brokers := settings.get("SITE_KAFKA_BROKERS"):
        relays = kafka_relays(brokers)
        found["SITE_KAFKA_BROKERS"] = ",".join(relay.address for relay in relays)
        ways |= {f"way to Kafka {number}": relay for number, relay in enumerate(relays, 1)}
    if hosts := settings.get("SITE_ELASTICSEARCH_HOSTS"):
        relay = ways["way to Elasticsearch"] = Relay(hosts.removeprefix("http://"))
        found["SITE_ELASTICSEARCH_HOSTS"] = f"http://{relay.address}"
    if port := settings.get("SITE_HBASE_PORT"):
        relay = ways["way to HBase"] = Relay(f"{settings['SITE_HBASE_HOST']}:{port}")
        found["SITE_HBASE_HOST"], found["SITE_HBASE_PORT"] = relay.address.split(":")
    for relay in ways.values():
        relay.start()
    return found
