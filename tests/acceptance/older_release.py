"""The release before this one, out of the repository's own history, and its processes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.debian import program
from tools.deployment.deployment import ROOT, Deployment, Run

# No version has a tag yet. This is the last commit that was published before modules lay in folders by
# concept and commit metadata had a check: the farthest that an installation can be behind. Once a version is
# tagged, its commit stands here.
RELEASE = "fd491aa691d277f787dc0ce3a25251f8f2162b09"
_PARTS = ("site_spider", "task_shell", "resources", "scrapy.cfg")


def older_release(folder: Path, root: Path = ROOT, release: str = RELEASE) -> Path:
    """Its files in this folder.

    Skips the test where there is no history, or a part of it only. Whole history must have the release when
    CI is set.
    """
    if not (root / ".git").exists():
        pytest.skip("these sources have no history, so there is no release before")
    packed = _git(root, "archive", release, *_PARTS)
    if packed.returncode:
        _missing(root, release)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12 has none
        files.extractall(folder)
    return folder


def _git(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Whoever owns the folder, and whatever hook of git runs the tests."""
    command = [program("git", "git"), "-c", "safe.directory=*", "-C", str(root), *arguments]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(command, capture_output=True, env=kept, check=False, timeout=300)


def _said(ran: subprocess.CompletedProcess[bytes]) -> str:
    return ran.stderr.decode(errors="replace").strip()


def _missing(root: Path, release: str) -> None:
    if (asked := _git(root, "rev-parse", "--is-shallow-repository")).returncode:
        pytest.skip(f"git cannot read the history: {_said(asked)}")
    if asked.stdout.strip() == b"true":
        pytest.skip(f"this clone is shallow and lacks {release}: run git fetch --unshallow")
    message = f"the history lacks {release}, the release before: name its commit in {Path(__file__).name}"
    (pytest.fail if os.environ.get("CI") else pytest.skip)(message)


class Versions:
    """Starts processes of both releases in one deployment, both with the packages of this one."""

    def __init__(self, deployment: Deployment, older: Path) -> None:
        self._deployment = deployment
        self._tree = older
        self.older: list[Run] = []

    def start(self, *, older: bool, **settings: str) -> Run:
        """A `crawl_spider.sh` with one process, which owns partitions when this returns."""
        tree = self._tree if older else ROOT
        deployment = self._deployment
        run = Run(
            deployment.folder / f"crawl-{len(deployment.runs)}-{'older' if older else 'newer'}.log",
            deployment.environment(PYTHONPATH=str(tree), **settings),
            ("-v", sys.prefix),
            tree / "task_shell" / "crawl_spider.sh",
        )
        deployment.runs.append(run)
        if older:
            self.older.append(run)
        run.wait_assigned()
        return run


def said_by(tree: Path, program_text: str, given: str) -> Iterator[str]:
    """The lines that a program prints which imports the modules of a release, and reads this text."""
    ran = subprocess.run(
        [sys.executable, "-c", program_text],
        input=given,
        capture_output=True,
        text=True,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    yield from ran.stdout.splitlines()
