"""What a test leaves behind fails it; tests that share a fixture run in one worker (pytest-xdist)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import leftovers
from tests.inner_run import inner_run

CONFTEST = """
import tests.leftovers
from tests.conftest import pytest_addoption, pytest_configure

tests.leftovers.PATIENCE_SECONDS = 0.1
"""
TESTS = """
import atexit
import os
import socket
import subprocess
import tempfile

import pytest

from tests.real_servers import SHARED_FOLDER

kept = []
SLEEPS = ["sleep", "600"]


@pytest.fixture(scope="module")
def of_the_module():
    with subprocess.Popen(SLEEPS) as process, socket.create_server(("127.0.0.1", 0)):
        yield
        process.kill()


def test_a_process():
    kept.append(subprocess.Popen(SLEEPS))


def test_an_orphan():
    subprocess.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"], check=True)


def test_a_port():
    kept.append(socket.create_server(("127.0.0.1", 0)))


def test_a_file():
    tempfile.mkdtemp()


def test_a_server_of_all_workers():
    process = subprocess.Popen(SLEEPS, env=os.environ | {"SITE_SERVERS_DIR": str(SHARED_FOLDER)})
    atexit.register(process.kill)


def test_what_a_module_shares_may_stay(of_the_module):
    pass


def test_what_is_taken_away_is_no_fault(of_the_module):
    with tempfile.TemporaryFile(), socket.create_server(("127.0.0.1", 0)):
        subprocess.run(["true"])
"""
FAILING = """
import gc
import subprocess

SLEEPS = ["sleep", "600"]


def test_inside_a_block():
    with subprocess.Popen(SLEEPS):
        raise RuntimeError


def test_that_waits():
    process = subprocess.Popen(SLEEPS)
    process.wait(0.1)


def test_another():
    gc.collect()
"""


def test_processes_orphans_ports_and_files_are_told_and_what_fixtures_hold_is_not(tmp_path: Path) -> None:
    done = inner_run(tmp_path, CONFTEST, TESTS)
    assert "7 passed, 4 errors" in done.stdout, done.stdout[-3000:]
    for test, thing in {"process": "process", "orphan": "process", "port": "listening socket", "file": "file"}.items():
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("ERROR") and f"_{test} " in line]
        assert f"leaves behind: {thing} " in line


def test_a_failing_test_ends_its_processes_and_fails_no_other(tmp_path: Path) -> None:
    """It waited for ever for one that nobody ended, and the warning about that one failed a later test."""
    done = inner_run(tmp_path, CONFTEST, FAILING, "-W", "error", "--timeout", "60")
    assert "2 failed, 1 passed, 1 error in" in done.stdout, done.stdout[-3000:]
    assert "from pytest-timeout" not in done.stdout


def test_a_process_that_begins_a_program_is_looked_at_when_it_has_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an exec it has none for a moment; it was taken for another's then, and never told."""
    there = tmp_path / "77"
    there.mkdir()
    (there / "cmdline").write_bytes(b"sleep\0600\0")

    def states(place: str) -> None:
        (there / "stat").write_text("77 (a) name) S 1 " + " ".join(["9"] * 46 + [place, "0"]))

    def patience(_seconds: float) -> None:
        (there / "environ").write_bytes(f"A=b\0TESTS_WORKER={os.getpid()}\0".encode())
        states("4096")

    monkeypatch.setenv("TMPDIR", os.environ["TMPDIR"])
    monkeypatch.setenv("TESTS_WORKER", os.environ["TESTS_WORKER"])
    guard = leftovers.Leftovers()
    monkeypatch.setattr(leftovers, "_PROC", tmp_path)
    monkeypatch.setattr("tests.leftovers.time.sleep", patience)
    (there / "environ").touch()
    states("0")
    assert guard._own_processes() == {77}
    guard.pytest_unconfigure()


SHARING = """
import os
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def shared():
    with open("made", "a") as made:
        made.write("x")

@pytest.mark.parametrize("number", range(6))
def test_it(number, shared):
    pass
"""


def test_one_worker_takes_all_tests_that_share_a_fixture(tmp_path: Path) -> None:
    """pytest-xdist does not see groups with pytest 9.2: each worker would make what is dear, servers too."""
    ran = inner_run(tmp_path, "from tests.conftest import pytest_itemcollected\n", SHARING, "-n3", "--dist=loadgroup")
    assert ran.returncode == 0, ran.stdout
    assert (tmp_path / "made").read_text() == "x"
