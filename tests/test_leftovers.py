"""What a test leaves behind fails it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import leftovers

ROOT = Path(__file__).resolve().parents[1]
CONFTEST = "from tests.conftest import pytest_addoption, pytest_configure\n"
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


def test_processes_orphans_ports_and_files_are_told_and_what_fixtures_hold_is_not(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST + "import tests.leftovers\ntests.leftovers.PATIENCE_SECONDS = 0.1")
    (tmp_path / "test_some.py").write_text(TESTS)
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore", f"--rootdir={tmp_path}", "-c", os.devnull]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "300"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "7 passed, 4 errors" in done.stdout, done.stdout[-3000:]
    for test, thing in {"process": "process", "orphan": "process", "port": "listening socket", "file": "file"}.items():
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("ERROR") and f"_{test} " in line]
        assert f"leaves behind: {thing} " in line


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
