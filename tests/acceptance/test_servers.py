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

    def variable(self, name: str, server: str) -> str:
        """What a shell knows by that name after `eval "$(servers.sh env SERVER)"`."""
        line = f'eval "$("$0" env {server})" && printf %s "${name}"'
        environment = os.environ | {"SITE_SERVERS_DIR": str(self.folder)}
        return subprocess.run(
            ["bash", "-c", line, str(SCRIPT)], env=environment, capture_output=True, text=True, check=True
        ).stdout

    def redis_port(self) -> int:
        return int(self.variable("SITE_REDIS_URL", "redis").rsplit(":", 1)[1].removesuffix("/0"))

    def pid(self, role: str) -> int:
        return int((self.folder / role / f"{role}.pid").read_text().split()[0])

    def processes(self) -> list[str]:
        """The command lines of all living processes that know this folder."""
        lines = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (process / "environ").read_bytes().decode(errors="replace")
                directory = str((process / "cwd").readlink())  # Redis writes over the other two
            except OSError:  # it ended while we looked, or is somebody else's
                continue
            if line and str(self.folder) in line + environment + directory:
                lines.append(line)
        return lines


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Servers in a folder of this test, stopped when it ends."""
    folder = Servers(tmp_path / "servers")
    yield folder
    folder.run("kill")
    assert folder.processes() == []


def redis_says(port: int, *words: str) -> str:
    """The first line of Redis's answer, asked without a client library."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(" ".join(words).encode() + b"\r\n")
        return connection.makefile("r", encoding="ascii").readline().strip()


def test_redis_answers_as_soon_as_start_returns(servers: Servers) -> None:
    """`start` means ready, and says where; `env` prints nothing but exports, and names who is missing."""
    output = servers.start("redis")
    assert redis_says(servers.redis_port(), "PING") == "+PONG"
    assert f"redis: ready at 127.0.0.1:{servers.redis_port()}" in output
    finished = servers.run("env")
    assert finished.returncode == 0
    assert finished.stdout == f"export SITE_REDIS_URL=redis://127.0.0.1:{servers.redis_port()}/0\n"
    assert "kafka was never started" in finished.stderr
    first = servers.pid("redis")
    assert "already running" in servers.start("redis", "redis")  # it is left alone
    assert servers.pid("redis") == first


def test_two_starts_side_by_side_start_one_server(servers: Servers) -> None:
    """The second waits for the first and then finds it running."""
    environment = os.environ | {"SITE_SERVERS_DIR": str(servers.folder)}
    starts = [
        subprocess.Popen([str(SCRIPT), "start", "redis"], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [start.communicate(timeout=300)[0] for start in starts]
    assert sorted("already" in output for output in outputs) == [False, True]
    assert len(servers.processes()) == 1


def test_address_and_data_are_kept_over_a_stop_an_outage_and_a_death(servers: Servers) -> None:
    """A client may keep its address; a process killed behind the script's back is seen as stopped."""
    servers.start("redis")
    port = servers.redis_port()
    assert redis_says(port, "SET", "seed", "kept") == "+OK"
    for verb in ("stop", "kill", ""):
        if verb:
            assert servers.run(verb, "redis").stdout == "redis: stopped\n"
        else:
            os.kill(servers.pid("redis"), signal.SIGKILL)
            assert servers.run("stop", "redis").returncode == 0
        assert servers.processes() == []
        assert f"ready at 127.0.0.1:{port}" in servers.start("redis")
        assert redis_says(port, "STRLEN", "seed") == ":4"


def test_a_port_in_use_is_survived_and_named(servers: Servers) -> None:
    """When another program has taken the kept port the server moves and says so."""
    servers.start("redis")
    port = servers.redis_port()
    servers.run("stop", "redis")
    with socket.create_server(("127.0.0.1", port)):
        output = servers.start("redis")
    assert f"port {port} is in use by another program" in output
    assert servers.redis_port() != port
    assert redis_says(servers.redis_port(), "PING") == "+PONG"


def test_folders_run_side_by_side(servers: Servers, tmp_path: Path) -> None:
    """Each folder has its own address and data, and stopping one leaves the other."""
    other = Servers(tmp_path / "other folder")
    servers.start("redis")
    other.start("redis")
    try:
        assert servers.redis_port() != other.redis_port()
        assert redis_says(servers.redis_port(), "SET", "seed", "here") == "+OK"
        assert redis_says(other.redis_port(), "STRLEN", "seed") == ":0"
    finally:
        other.run("stop")
    assert other.processes() == []
    assert redis_says(servers.redis_port(), "PING") == "+PONG"


def test_a_pid_that_belongs_to_another_program_is_left_alone(servers: Servers) -> None:
    """A pid file that outlived its process neither counts as running nor gets a stranger killed."""
    servers.start("redis")
    pid_file = servers.folder / "redis" / "redis.pid"
    _, tick, group = pid_file.read_text().split()
    servers.run("kill", "redis")
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        try:
            pid_file.write_text(f"{stranger.pid} {tick} {group}\n")
            assert servers.run("status", "redis").returncode == 3
            assert "was not running" in servers.run("kill", "redis").stdout
            pid_file.write_text(f"{stranger.pid} {tick} {group}\n")
            assert "ready at" in servers.start("redis")
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_start_that_fails_shows_the_log_and_leaves_nothing(servers: Servers) -> None:
    """The reason stands on stderr, and the server that did start is stopped too."""
    servers.variables = {"SITE_SERVERS_KAFKA_PROPERTIES": "num.network.threads=none"}
    finished = servers.run("start", "kafka", "redis")
    assert finished.returncode == 1
    assert "Invalid value none for configuration num.network.threads" in finished.stderr
    assert servers.processes() == []


def test_kafka_keeps_messages_and_address_over_a_restart_and_takes_more_settings(servers: Servers) -> None:
    """A message produced before the restart is read after it, from the same address."""
    servers.variables = {"SITE_SERVERS_KAFKA_PROPERTIES": "num.partitions=3"}
    servers.start("kafka")
    brokers = servers.variable("SITE_KAFKA_BROKERS", "kafka")
    assert servers.run("status", "kafka").returncode == 0
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
    assert servers.variable("SITE_KAFKA_BROKERS", "kafka") == brokers
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


def test_an_unknown_word_is_refused_before_anything_is_done_and_help_is_given(servers: Servers) -> None:
    """A misspelt verb or server names what there is, with exit code 2."""
    for unknown in (("begin",), ("start", "mongodb"), ("start", "redis", "mongodb")):
        finished = servers.run(*unknown)
        assert finished.returncode == 2
        assert "unknown" in finished.stderr
    for asked in ((), ("-h",), ("--help",), ("start", "--help")):
        finished = servers.run(*asked)
        assert finished.returncode == 0
        assert "Usage: servers.sh start [--secure]|stop|kill|status|env" in finished.stdout
    assert servers.run("stop").returncode == 0  # what never ran
    unknown_address = servers.run("env", "redis")  # an error instead of an empty address
    assert (unknown_address.returncode, unknown_address.stdout) == (1, "")
    assert "servers.sh start redis" in unknown_address.stderr
    assert not servers.folder.exists()
