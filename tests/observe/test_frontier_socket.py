"""`scrapy frontier` and the process that it asks: what is said, who may ask, and what asking costs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider.adapters.kafka.member_name import default_folder
from site_spider.commands import frontier as command
from site_spider.errors import SiteSpiderError
from site_spider.frontier.frontier import Frontier, HostPolicy
from site_spider.observe import frontier_socket as frontier_sockets
from site_spider.observe import snapshot as observed
from site_spider.observe.frontier_socket import FrontierServer
from site_spider.observe.metrics.catalogue import exposition
from site_spider.service.supervisor import ScaleControl
from tests.adapters.local.test_log import full
from tests.commands.project import Project
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page


@pytest.fixture(autouse=True)
def sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))  # for commands: other crawls may run on this machine
    return tmp_path / "site_spider"


def while_crawling(folder: Path, ask: Callable[[], Any], seeds: int = 6, **overrides: Any) -> tuple[Any, Crawled]:
    """What `ask` gets, in a thread, while the first page of a host is downloading and the others wait."""
    answers: list[Any] = []
    began = asyncio.Event()

    async def slow(request: Request) -> Response:
        if not began.is_set():
            began.set()
            await asyncio.sleep(0.1)  # the other seeds have arrived
            answers.append(await asyncio.to_thread(ask))
        return page(request)

    for number in range(seeds):
        engine.ANSWERS[f"/{number}"] = slow
    produced = [{"url": f"http://h.test/{number}"} for number in range(seeds)]
    crawled = crawl(folder, produced, CONCURRENT_REQUESTS_PER_DOMAIN=1, **overrides)
    return answers[0], crawled


@pytest.mark.parametrize("loop", [None, asyncio.SelectorEventLoop], ids=["of crawls", "of virtual time"])
def test_a_crawl_that_fails_as_it_opens_leaves_nobody_listening(
    sockets: Path, monkeypatch: pytest.MonkeyPatch, loop: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:
    """Wherever its start is cancelled; the test fails by itself for what is left."""

    async def at_once(call: Callable[..., Any], *arguments: Any) -> Any:
        return call(*arguments)

    async def scenario(is_cancelled: bool) -> bool:
        """Whether it was cancelled, or closed as it opened, at each step, up to the last."""
        for steps in range(100):
            server = FrontierServer(SimpleNamespace(), at_once, SimpleNamespace(identity=str, address=""))  # type: ignore[arg-type]
            opening = asyncio.create_task(server.open())
            for _ in range(steps):
                await asyncio.sleep(0)
            is_open = opening.done()
            if is_cancelled:
                opening.cancel()
                await asyncio.gather(opening, return_exceptions=True)
            await server.close()
            await asyncio.gather(opening, return_exceptions=True)
            left = list(sockets.glob("*"))
            await server.close()  # a socket that is left would keep the event loop from ending
            assert left == []
            if is_open:
                return steps > 0
        return False

    monkeypatch.setattr(frontier_sockets.asyncio, "to_thread", at_once)
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(scenario(is_cancelled=True))
        assert runner.run(scenario(is_cancelled=False))


def asked(question: bytes = b"5\n") -> bytes:
    (path,) = frontier_sockets.running()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(300)
        connection.connect(str(path))
        connection.sendall(question)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def test_a_running_process_says_what_waits_and_why(tmp_path: Path, sockets: Path) -> None:
    """One host with one request out, the other seeds waiting for it. The command shows it.

    The console gets all that metrics are made of, and the seed log; others hear what could be asked.
    """
    project, pid = Project(tmp_path / "data"), str(os.getpid())
    wrong = [b"-1\n", b"1001\n", b"1 2\n", b"\xff\xfe\n", "²\n".encode(), b"\n"]

    def ask() -> tuple[list[Any], int, list[Any]]:
        (path,) = sockets.iterdir()
        answers = [json.loads(asked(question)) for question in (b"5\n", b"metrics\n", b"0\n", *wrong)]
        ran = [
            project.scrapy("frontier"),
            project.scrapy("frontier", "--process", pid, "--format", "json", "--hosts", "0"),
            project.scrapy("frontier", "--process", "1"),
            project.scrapy("frontier", "--hosts", "1001"),
        ]
        return answers, path.stat().st_mode, ran

    ((found, metrics, whole, *refusals), mode, ran), crawled = while_crawling(
        tmp_path / "data", ask, timeout_seconds=600
    )
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    assert (found["pid"], found["group"], found["topic"]) == (os.getpid(), "site_spider", "seeds")
    assert found["queues"].pop("bytes") > 0
    nothing = dict.fromkeys(("redirected", "discovered", "retried", "proxied", "spilling"), 0)
    assert found["queues"] == {**nothing, "seeds": 5}
    assert found["levels"] == {"0": 5}
    assert (found["waiting"], found["waiting_for_their_moment"], found["requests_out"]) == (5, 0, 1)
    assert found["hosts"] == {"waiting": 1, "busy": 1}
    assert found["largest_hosts"] == [
        {"host": "h.test", "waiting": 5, "out": 1, "reason": "busy", "next_in_seconds": None}
    ]
    assert sum(found["seeds_in_flight"].values()) == 6
    assert found["paused"] == {}
    [sink] = found["sinks"]
    assert (sink["name"], sink["available"], sink["backlog"], sink["backlog_bytes"]) == ("local", True, 0, 0)
    assert found["proxies"] is None
    assert crawled.lag == 0
    assert list(sockets.iterdir()) == []

    text = exposition([metrics], of_host=True).decode()
    assert 'site_spider_processes_answering{group="site_spider"} 1.0' in text
    assert 'site_spider_seeds_consumed_total{group="site_spider",slot="1"} 6.0' in text
    assert "site_spider_event_loop_lag_seconds_bucket" in text
    assert metrics["log"]["identity"] == whole["log"]["identity"] == str(tmp_path / "data")
    said = "the question is a number of hosts, 0 to 1000, or metrics"
    assert refusals == [{"error": said}] * len(wrong)

    table, document, other, too_many = ran
    assert table.returncode == 0, table.stderr
    assert f"Process {os.getpid()}: crawl_spider of group site_spider on topic seeds\n" in table.stdout
    assert "  queues           redirected 0, discovered 0, seeds 5, retried 0, proxied 0, " in table.stdout
    assert table.stdout.splitlines()[-1].split() == ["h.test", "5", "1", "busy", "-"]
    assert json.loads(document.stdout)["largest_hosts"] == []
    assert (other.returncode, other.stdout) == (1, "")
    assert other.stderr.startswith("scrapy frontier: no crawl runs as process 1 that could be asked: ")
    assert too_many.returncode == 2


def test_a_process_that_does_not_answer_is_named(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the others are shown."""
    monkeypatch.setattr(command, "_SECONDS", 0.2)
    sockets.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(sockets / f"{os.getpid()}-abc.frontier"))
        silent.listen()
        (path,) = frontier_sockets.alive()
        with pytest.raises(TimeoutError):
            asyncio.run(frontier_sockets.ask(path, b"1", 0.2))


def ask(process: int | None = None) -> None:
    command.Command().work(SimpleNamespace(hosts=1, process=process, format="table"))  # type: ignore[arg-type]


def test_a_socket_that_nobody_listens_at_is_of_no_process(sockets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another process may have the number of the one that was killed."""
    sockets.mkdir(mode=0o700)
    (sockets / f"{os.getpid()}-abc.frontier").touch()
    with pytest.raises(SiteSpiderError, match="no crawl runs that could be asked"):
        ask()
    assert capsys.readouterr().err == ""


def test_sockets_of_ended_processes_are_removed(tmp_path: Path, sockets: Path) -> None:
    """By the next process that starts, those of its own number, too; those of living ones, and other files, stay."""
    with pytest.raises(SiteSpiderError, match="no crawl runs that could be asked"):
        ask()
    sockets.mkdir(mode=0o700)
    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(ended, 0)
    stale = {f"{ended}-abc.frontier", f"{os.getpid()}-abc.frontier"}  # in a container all have the same number
    names = {*stale, f"{os.getppid()}-abc.frontier", "1-abc.frontier", "other.lock"}
    for name in names:
        (sockets / name).touch()
    assert len(frontier_sockets.running()) == 4
    with pytest.raises(SiteSpiderError, match="no crawl runs as process"):
        ask(ended)
    while_crawling(tmp_path / "data", lambda: None, seeds=1)
    assert {path.name for path in sockets.iterdir() if path.suffix != ".killed"} == names - stale


@pytest.mark.parametrize("name", ["open", "link", "foreign", "long"])
def test_a_folder_of_others_is_not_used(
    tmp_path: Path, sockets: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that others may write to, a link, another user's, or one whose name is too long."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    if name == "open":
        sockets.mkdir()
        sockets.chmod(0o777)
    elif name == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        sockets.symlink_to(tmp_path / "elsewhere")
    elif name == "foreign":
        if os.getuid():
            pytest.skip("only root can give a folder away")
        sockets.mkdir(mode=0o700)
        os.chown(sockets, 12345, -1)
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    with pytest.raises(OSError, match=r"not this user's alone|too long a name"):
        frontier_sockets.new_path()
    assert not frontier_sockets.running()
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket's name has 107 bytes at most
        monkeypatch.setenv("TMPDIR", short)
        assert frontier_sockets.new_path().parent == Path(short) / f"site_spider-{os.getuid()}"


def test_a_temporary_folder_that_cannot_be_looked_at_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of root, whose environment a command of another user has; TMPDIR is set."""
    monkeypatch.setattr(os, "stat", Mock(side_effect=PermissionError))
    assert [*frontier_sockets.folders()][-1].parent == Path("/tmp")


def test_a_full_disk_hides_no_crawl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the folders for temporary files, `tempfile` takes the first that it can write to."""
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/proc")
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # as above
        monkeypatch.setenv("TMPDIR", short)
        path = frontier_sockets.new_path()
        path.touch()
        monkeypatch.setattr(tempfile, "tempdir", None)  # as in a new process
        with full(tmp_path):
            assert frontier_sockets.running() == {path: os.getpid()}
            assert default_folder() == path.parent
            assert ScaleControl(["key"]).claim() is None


def test_that_it_cannot_listen_does_not_stop_a_crawl(tmp_path: Path, sockets: Path) -> None:
    sockets.write_text("a file in the place of the folder")
    _, crawled = while_crawling(tmp_path / "data", lambda: None)
    assert len(crawled.documents) == 6
    sockets.unlink()
    seen, crawled = while_crawling(tmp_path / "more", frontier_sockets.running, SITE_FRONTIER_SOCKET="false")
    assert (seen, len(crawled.documents)) == ({}, 6)


def test_hostile_clients_do_not_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent ones, a flood of bytes, one that never reads: all are thrown out, and the crawl goes on."""
    monkeypatch.setattr("site_spider.observe.frontier_socket._SECONDS", 0.3)

    def ask() -> tuple[bytes, list[bytes], bytes]:
        (path,) = frontier_sockets.running()
        clients = [socket.socket(socket.AF_UNIX) for _ in range(10)]
        for number, client in enumerate(clients):
            client.settimeout(300)
            client.connect(str(path))
            if number == 1:
                client.sendall(b"1000\n")  # and never reads
        with socket.socket(socket.AF_UNIX) as flood:
            flood.settimeout(300)
            flood.connect(str(path))
            try:
                for _ in range(1000):
                    flood.sendall(b"x" * 100_000)
                flooded = b"taken"
            except OSError:
                flooded = b""
        ends = []
        for number, client in enumerate(clients):
            try:
                ends.append(b"" if number == 1 else client.recv(10))
            except ConnectionResetError:
                ends.append(b"")
            client.close()
        monkeypatch.setattr("site_spider.observe.frontier_socket._SECONDS", 300.0)
        return flooded, ends, asked()

    (flooded, ends, answer), crawled = while_crawling(tmp_path / "data", ask, timeout_seconds=600)
    assert (flooded, ends) == (b"", [b""] * 10)
    assert json.loads(answer)["waiting"] == 5
    assert len(crawled.documents) == 6


async def test_a_look_at_many_hosts_does_not_hold_up_the_loop() -> None:
    frontier: Frontier[int] = Frontier(lambda _host: HostPolicy(1))
    for number in range(100_000):
        frontier.push(0, f"host{number}.test", number, 0.0)
    service = SimpleNamespace(queues=SimpleNamespace(room=SimpleNamespace(frontier=frontier)))
    looking = asyncio.create_task(observed.survey(service, 1000))  # type: ignore[arg-type]
    turns = 0
    while not looking.done():
        await asyncio.sleep(0)
        turns += 1
    found = looking.result()
    assert found.counts() == {"waiting": 100_000, "ready": 100_000}
    assert len(found.largest(0.0)) == 1000
    assert len(json.dumps(found.largest(0.0))) < 200_000
    assert turns > 20
