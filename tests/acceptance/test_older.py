"""Where the release before is looked for, and what becomes of its tests where it is not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.acceptance.older import older_release


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.test", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Two commits, each with the files of a release."""
    folder = tmp_path / "history"
    for part in ("site_spider", "task_shell", "resources"):
        (folder / part).mkdir(parents=True)
        (folder / part / "file").write_text("older")
    (folder / "scrapy.cfg").write_text("")
    git(folder, "init", "--quiet")
    for text in ("older", "newer"):
        (folder / "site_spider" / "file").write_text(text)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", text)
    return folder


def test_its_files_come_out_of_the_history(history: Path, tmp_path: Path) -> None:
    older = older_release(tmp_path / "older", history, git(history, "rev-parse", "HEAD~1"))
    assert (older / "site_spider" / "file").read_text() == "older"


def test_only_whole_history_must_have_it_and_only_in_ci(
    history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = git(history, "rev-parse", "HEAD~1")
    git(tmp_path, "clone", "--quiet", "--depth", "1", history.as_uri(), "shallow")
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / ".git").write_text("gitdir: /nowhere\n")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.skip.Exception, match="unshallow"):
        older_release(tmp_path / "older", tmp_path / "shallow", release)
    with pytest.raises(pytest.skip.Exception, match="no history"):
        older_release(tmp_path / "older", tmp_path, release)
    with pytest.raises(pytest.skip.Exception, match="cannot read"):
        older_release(tmp_path / "older", tmp_path / "exported", release)
    with pytest.raises(pytest.fail.Exception, match="the history lacks 0000"):
        older_release(tmp_path / "older", history, "0" * 40)
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="the history lacks 0000"):
        older_release(tmp_path / "older", history, "0" * 40)
