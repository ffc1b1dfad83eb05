"""`scrapy console` and `scrapy top` as they are started."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import signal
import socket
import subprocess
import urllib.request
from contextlib import ExitStack, closing, suppress
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest

from tests.commands.project import Project

TOKEN = "0123456789abcdef0123"


def of_its_own(folder: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(folder)}


def started(project: Project, folder: Path, *arguments: str, **variables: Any) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return project.started("console", "--port", "0", *arguments, **of_its_own(folder), **pipes, **variables)


@pytest.mark.parametrize(("number", "token"), [(signal.SIGTERM, TOKEN), (signal.SIGINT, "")])
def test_it_says_its_address_serves_and_ends_when_it_is_asked(
    project: Project, tmp_path: Path, number: signal.Signals, token: str
) -> None:
    """The token is never printed, and nothing is logged of a body that is not what it says, or of what is no HTTP."""
    with started(project, tmp_path, SITE_CONSOLE_TOKEN=token) as process:
        line = process.stdout.readline()
        address = line.removeprefix("The console is at ").strip()
        asked = urllib.request.Request(f"{address}?format=json", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(asked, timeout=300) as answer:
            assert json.load(answer)["page"] == "overview"
        damaged = urllib.request.Request(f"{address}login", b"token=x", {"Content-Encoding": "gzip"})
        for odd in (damaged, f"{address}?{'x' * 9_000}"):
            with suppress(HTTPError), urllib.request.urlopen(odd, timeout=300):
                pass
        process.send_signal(number)
        said, complaints = process.communicate(timeout=300)
    assert (process.returncode, complaints) == (0, "")
    assert TOKEN not in line + said


def test_more_connections_than_file_descriptors_are_not_logged(project: Project, tmp_path: Path) -> None:
    few = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64))
    with started(project, tmp_path, preexec_fn=few) as process:
        address = process.stdout.readline().removeprefix("The console is at ").strip()
        place = ("127.0.0.1", int(address.rstrip("/").rsplit(":", 1)[1]))
        for held in [socket.create_connection(place) for _ in range(100)]:
            held.close()
        status = 0
        while not status:
            with suppress(ConnectionError), closing(HTTPConnection(*place, timeout=300)) as connection:
                connection.request("GET", "/")  # it is cut until the console has seen the others end
                status = connection.getresponse().status
        assert status == 200
        process.terminate()
        assert process.communicate(timeout=300)[1] == ""


def test_the_dead_letters_are_those_of_the_topic_that_is_named(project: Project, tmp_path: Path) -> None:
    """They are put back into it, too."""
    for topic in ("seeds", "other"):
        headers = (("origin_topic", topic.encode()), ("origin_offset", b"7"))
        project.produce(f"{topic}.dead-letters", (b"h.test", b'{"url": "http://h.test/"}'), headers=headers)
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with started(project, tmp_path, "--topic", "other") as process, ExitStack() as stack:
        stack.callback(process.terminate)
        address = process.stdout.readline().removeprefix("The console is at ").strip()

        def asked(path: str, **form: str) -> str:
            with opener.open(address + path, urlencode(form).encode() or None, timeout=300) as answer:
                return str(answer.read().decode())

        [letter] = json.loads(asked("failures?format=json"))["dead_letters"]
        assert letter["origin"] == "other/?/7"
        found = json.loads(asked("url?format=json&url=http://h.test/"))["found"]
        assert [each["origin"] for each in found["dead_letters"]] == ["other/?/7"]
        token = re.search(r'name="form_token" value="([0-9a-f]+)"', asked("failures"))
        assert token
        said = asked("failures/replay", form_token=token[1], place=letter["place"])
        assert "1 dead letter of 1 put back." in said
    assert [message.value for message in project.log.read("other")] == [b'{"url": "http://h.test/"}']


def test_top_is_shown_once_where_no_terminal_is(project: Project, tmp_path: Path) -> None:
    assert project.within("top", TMPDIR=str(tmp_path)).returncode == 1  # nothing is there to be read
    project.produce("seeds", (b"h.test", b'{"url": "http://h.test/"}'))
    ran = project.scrapy("top", **of_its_own(tmp_path))
    assert ran.returncode == 0
    assert "\x1b" not in ran.stdout
    assert "lag            1 seeds are left of 1" in ran.stdout
    assert "No process of the group runs; lag 1." in ran.stdout


def test_top_is_drawn_again_and_again_in_a_terminal(project: Project, tmp_path: Path) -> None:
    project.produce("seeds", (b"h.test", b'{"url": "http://h.test/"}'))
    ours, theirs = pty.openpty()
    terminal: dict[str, Any] = {"TERM": "xterm", "stdout": theirs, "stderr": subprocess.DEVNULL}
    with project.started("top", "--seconds", "0.5", **of_its_own(tmp_path), **terminal) as process:
        os.close(theirs)
        drawn = b""
        while drawn.count(b"\x1b[H\x1b[J") < 3:
            drawn += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
    os.close(ours)
    assert b"No process of the group runs; lag 1." in drawn
