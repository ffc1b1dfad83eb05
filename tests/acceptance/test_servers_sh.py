"""What `task_shell/servers.sh` promises, shown with Redis and Kafka."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.acceptance.test_chaos_sh import still_running

pytestmark = pytest.mark.servers

SCRIPT = Path(__file__).resolve().parents[2] / "task_shell" / "servers.sh"
Finished = subprocess.CompletedProcess[str]


class Servers:
    """One folder of servers, and the script run on it from another directory than the project's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables: dict[str, str] = {}

    def run(self, *arguments: str) -> Finished:
        environment = os.environ | {"SITE_SERVERS_DIR": str(self.folder)} | self.variables
        command = [str(SCRIPT), *arguments]
        return subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=300, check=False
        )

    def start(self, *names: str) -> str:
        finished = self.run("start", *names)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def address(self, role: str, name: str = "client") -> str:
        lines = (self.folder / role / "ports").read_text().splitlines()
        return "127.0.0.1:" + dict(line.split("=") for line in lines)[name]

    def pid(self, role: str) -> int:
        return int((self.folder / role / f"{role}.pid").read_text().split()[0])

    def processes(self) -> list[str]:
        return still_running(self.folder)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Servers in a folder of this test, stopped when it ends."""
    folder = Servers(tmp_path / "servers")
    yield folder
    folder.run("kill")
    assert folder.processes() == []


def redis_says(address: str, *words: str) -> str:
    """The first line of Redis's answer, asked without a client library."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        connection.sendall(" ".join(words).encode() + b"\r\n")
        return connection.makefile("r", encoding="ascii").readline().strip()


def test_a_server_is_found_again_after_all_that_may_happen_to_it(servers: Servers, tmp_path: Path) -> None:
    """Two starts side by side, stops, outages, a death, another program with its port or its pid."""
    environment = os.environ | {"SITE_SERVERS_DIR": str(servers.folder)}
    command = [str(SCRIPT), "start", "redis", "redis"]
    starts = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [start.communicate(timeout=300)[0] for start in starts]
    address = servers.address("redis")
    assert f"redis: ready at {address}" in "".join(outputs)
    assert sorted("already running" in output for output in outputs) == [False, True]
    assert len(servers.processes()) == 1
    known = servers.run("env")
    assert (known.returncode, known.stdout) == (0, f"export SITE_REDIS_URL=redis://{address}/0\n")
    assert "kafka was never started" in known.stderr
    assert redis_says(address, "SET", "seed", "kept") == "+OK"

    assert servers.run("stop", "redis").stdout == "redis: stopped\n"
    assert servers.processes() == []
    with socket.create_server(("127.0.0.1", port := int(address.partition(":")[2]))):
        assert f"port {port} is in use by another program" in servers.start("redis")
    assert servers.address("redis") != address
    address = servers.address("redis")
    assert redis_says(address, "STRLEN", "seed") == ":4"

    pid_file = servers.folder / "redis" / "redis.pid"
    _, tick, group = pid_file.read_text().split()
    assert servers.run("kill", "redis").stdout == "redis: stopped\n"
    assert servers.processes() == []
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        try:
            for verb, said in (("status", "stopped"), ("kill", "was not running"), ("start", address)):
                pid_file.write_text(f"{stranger.pid} {tick} {group}\n")
                ran = servers.run(verb, "redis")
                assert said in ran.stdout
                assert ran.returncode == (3 if verb == "status" else 0)
            assert stranger.poll() is None
        finally:
            stranger.kill()
    os.kill(servers.pid("redis"), signal.SIGKILL)
    assert servers.run("stop", "redis").returncode == 0
    assert f"ready at {address}" in servers.start("redis")
    assert redis_says(address, "STRLEN", "seed") == ":4"

    other = Servers(tmp_path / "other folder")
    other.start("redis")
    try:
        assert redis_says(other.address("redis"), "STRLEN", "seed") == ":0"
    finally:
        other.run("stop")
    assert other.processes() == []
    assert redis_says(address, "PING") == "+PONG"


def test_a_server_has_no_file_of_its_caller(servers: Servers) -> None:
    """A lock, say, which would be held until the stop."""
    reads, writes = os.pipe()
    environment = os.environ | {"SITE_SERVERS_DIR": str(servers.folder)}
    subprocess.run([str(SCRIPT), "start", "redis"], env=environment, pass_fds=(writes,), timeout=300, check=True)
    os.close(writes)
    os.set_blocking(reads, False)
    assert os.read(reads, 1) == b""  # its end; with another writer it would block
    os.close(reads)


def test_a_start_that_fails_shows_the_log_and_leaves_nothing(servers: Servers) -> None:
    """The reason stands on stderr, and the server that did start is stopped too."""
    servers.variables = {"SITE_SERVERS_KAFKA_PROPERTIES": "num.network.threads=none"}
    finished = servers.run("start", "kafka", "redis")
    assert finished.returncode == 1
    assert "Invalid value none for configuration num.network.threads" in finished.stderr
    assert servers.processes() == []


def shell(line: str, servers: Servers) -> str:
    environment = os.environ | {"SITE_SERVERS_DIR": str(servers.folder)}
    return subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=True).stdout


def test_kafka_keeps_messages_and_address_over_a_restart_and_takes_more_settings(servers: Servers) -> None:
    """A message produced before the restart is read after it, from the same address."""
    servers.variables = {"SITE_SERVERS_KAFKA_PROPERTIES": "num.partitions=3"}
    servers.start("kafka")
    brokers = servers.address("kafka")
    assert shell(f'eval "$("{SCRIPT}" env kafka)" && printf %s "$SITE_KAFKA_BROKERS"', servers) == brokers
    finished = servers.run("status")  # a line a server; 0 only when all that were asked for run
    assert finished.returncode == 3
    assert [line.split() for line in finished.stdout.splitlines()] == [
        ["kafka", "running", str(servers.pid("kafka")), brokers],
        *([name, "stopped", "-", "-"] for name in ("elasticsearch", "hbase", "redis")),
    ]
    producer = Producer({"bootstrap.servers": brokers})
    producer.produce("kept", b"seed")
    assert producer.flush(300) == 0
    servers.run("stop", "kafka")
    assert servers.processes() == []

    servers.start("kafka")
    assert servers.address("kafka") == brokers
    admin = AdminClient({"bootstrap.servers": brokers})
    assert len(admin.list_topics("kept", 60).topics["kept"].partitions) == 3
    options = {"bootstrap.servers": brokers, "group.id": "test", "auto.offset.reset": "earliest"}
    consumer = Consumer(options)
    try:
        consumer.subscribe(["kept"])
        message = consumer.poll(120)
        assert message is not None
        assert message.value() == b"seed"
    finally:
        consumer.close()


def test_an_unknown_word_is_refused_before_anything_is_done_and_help_is_given(tmp_path: Path) -> None:
    """A misspelt verb or server names what there is, with exit code 2."""
    servers = Servers(tmp_path / "servers")
    for unknown in (("begin",), ("start", "redis", "mongodb")):
        finished = servers.run(*unknown)
        assert finished.returncode == 2
        assert "unknown" in finished.stderr
    for asked in ((), ("start", "--help")):
        finished = servers.run(*asked)
        assert finished.returncode == 0
        assert "Usage: servers.sh start [--secure]|stop|kill|status|env" in finished.stdout
    assert servers.run("stop").returncode == 0  # what never ran
    unknown_address = servers.run("env", "redis")  # an error instead of an empty address
    assert (unknown_address.returncode, unknown_address.stdout) == (1, "")
    assert "servers.sh start redis" in unknown_address.stderr
    assert not servers.folder.exists()
