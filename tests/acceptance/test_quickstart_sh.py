"""What `task_shell/quickstart.sh` shows, in the virtual environment that is there."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import hatch_build
from tests.acceptance.test_chaos_sh import still_running
from tools.deployment.deployment import wait_until

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "task_shell" / "quickstart.sh"
pytestmark = pytest.mark.xdist_group("quickstart")  # one at a time in a project


def quickstart(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run from that folder, with data below it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
    return subprocess.run(
        [str(SCRIPT), *arguments],
        # Servers of the environment must not be used: nothing listens there.
        env=kept | {"SITE_DATA_DIR": str(folder / "my data"), "SITE_KAFKA_BROKERS": "127.0.0.1:1"} | variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1500,  # on a busy machine, with a compilation
        check=False,
    )


COMPILED = f"site_spider is compiled ({len(hatch_build.modules())} modules)"
PURE = "site_spider is pure Python (--compiled makes it faster)"


@pytest.mark.parametrize(
    ("form", "options"),
    [
        pytest.param(PURE, (), id="pure"),
        pytest.param(COMPILED, ("--compiled",), id="compiled", marks=pytest.mark.nightly),
    ],
)
def test_the_sample_site_is_crawled_and_shown(form: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Results, failures and dead letters, where they are, and what to try; then the site is gone."""
    ran = quickstart(tmp_path, *options, COMPILE_LEVEL="0")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert form in lines
    assert {"Results: 34", "Failures: 5", "Dead letters in seeds.dead-letters: 2"} <= set(lines)
    assert "What to try next" in lines
    assert any(f"kept in {tmp_path / 'my data'}" in line for line in lines)
    assert {path.name for path in (tmp_path / "my data").iterdir()} >= {"crawl.log", "results.sqlite", "seeds.sqlite"}
    names = [line.partition("=")[2] for line in lines if line.startswith("  export SITE_DATA_DIR=")]
    assert [shlex.split(name) for name in names] == [[str(tmp_path / "my data")]]
    wait_until(lambda: not still_running(tmp_path / "my data"), 300, "the end of all it started")


@pytest.mark.nightly
def test_a_file_with_bad_lines_is_crawled_all_the_same(tmp_path: Path) -> None:
    """They are named; a name relative to where one stands is found."""
    (tmp_path / "seeds.txt").write_text("no seed\nhttp://127.0.0.1:1/\n")
    ran = quickstart(tmp_path, "seeds.txt")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.startswith("line 1: ")
    assert "produced 1, refused 1" in ran.stdout
    assert "Failures: 1" in ran.stdout


def test_a_file_without_a_seed_removes_nothing(tmp_path: Path) -> None:
    """What the run before left in data/quickstart is still there."""
    (tmp_path / "bad").write_text("no seed\nnor this\n")
    left = ROOT / "data" / "quickstart" / f"left-by-{tmp_path.name}"
    left.parent.mkdir(parents=True, exist_ok=True)
    left.touch()
    try:
        ran = quickstart(tmp_path, "bad", SITE_DATA_DIR="")
        assert ran.returncode == 1
        assert "no line of 'bad' could be used" in ran.stderr
        assert left.exists()
        assert not left.parent.with_name("quickstart.new").exists()
    finally:
        left.unlink(missing_ok=True)


def test_data_of_ones_own_may_be_anywhere_and_waits_for_no_other(tmp_path: Path) -> None:
    """In a project that is read-only, say, or where another quickstart runs; its name may be like an option."""
    (tmp_path / "bad").write_text("no seed\n")
    (ROOT / "data").mkdir(exist_ok=True)
    descriptor = os.open(ROOT / "data", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        ran = quickstart(tmp_path, "bad", SITE_DATA_DIR="-own")
    finally:
        os.close(descriptor)
        shutil.rmtree(ROOT / "-own", ignore_errors=True)
    assert (ran.returncode, "no line of 'bad' could be used" in ran.stderr) == (1, True), ran.stderr


_PREPARED = """
here=$1/task_shell project=$2
source "$here/lib/venv.sh"
usable() { :; }
make_venv() { echo made; }
install_requirements() { :; }
prepare_venv requirements.txt
"""


def test_an_environment_that_was_moved_is_made_anew(tmp_path: Path) -> None:
    """With its project, or copied: its scripts name the Python of the old place."""

    def prepare(project: Path) -> str:
        command = ["bash", "-euc", _PREPARED, "bash", str(ROOT), str(project)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout

    old, new = tmp_path / "old place", tmp_path / "new place"
    (old / ".venv").mkdir(parents=True)
    (old / "requirements.txt").touch()
    assert [prepare(old), prepare(old)] == ["", ""]
    shutil.copytree(old, new)
    assert prepare(new) == "made\n"
    (tmp_path / "linked").mkdir()
    shutil.copy(old / "requirements.txt", tmp_path / "linked")
    (tmp_path / "linked" / ".venv").symlink_to(old / ".venv")
    assert prepare(tmp_path / "linked") == ""


def test_what_another_one_uses_is_not_removed(tmp_path: Path) -> None:
    """As the last lines of a run suggest it, with SITE_DATA_DIR: of two that name no folder the second is refused."""
    (tmp_path / "seeds").write_text("http://127.0.0.1:1/\n")
    used = ROOT / "data" / "quickstart"
    used.mkdir(parents=True, exist_ok=True)
    left = used / f"left-by-{tmp_path.name}"
    left.touch()
    descriptor = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for folder in ("", "data/quickstart"):
            ran = quickstart(tmp_path, "seeds", SITE_DATA_DIR=folder)
            assert (ran.returncode, "another quickstart is running in" in ran.stderr) == (1, True), ran.stderr
        assert left.exists()
        assert not used.with_name("quickstart.new").exists()
    finally:
        os.close(descriptor)
        left.unlink(missing_ok=True)


def test_a_wrong_argument_is_said_before_anything_is_done(tmp_path: Path) -> None:
    for arguments, code, said in (
        (["no-such-file"], 1, "there is no file 'no-such-file'"),
        (["."], 1, "'.' is not a file"),
        (["--no-such-option"], 2, "unknown option '--no-such-option'"),
        (["a", "b"], 2, "one FILE at most"),
    ):
        ran = quickstart(tmp_path, *arguments)
        assert (ran.returncode, ran.stdout) == (code, "")
        assert said in ran.stderr
    assert not (tmp_path / "my data").exists()
