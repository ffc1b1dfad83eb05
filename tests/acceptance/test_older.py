"""Where the release before is looked for, and what becomes of its tests where it is not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.acceptance.older import older_release

# Two commits, each with the files of a release.
FILES = "".join(f"M 644 inline {part}/file\ndata 5\n{{0}}\n" for part in ("site_spider", "task_shell", "resources"))
COMMIT = "commit refs/heads/main\ncommitter a <a@b.test> {1} +0000\ndata 0\n" + FILES
COMMIT += "M 644 inline scrapy.cfg\ndata 0\n\n"


def git(*arguments: str, given: str = "") -> str:
    return subprocess.run(["git", *arguments], input=given, capture_output=True, text=True, check=True).stdout.strip()


def test_its_files_come_out_of_the_history_which_ci_must_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history, place = tmp_path / "history", f"--git-dir={tmp_path / 'history' / '.git'}"
    git("init", "--quiet", "--initial-branch=main", str(history))
    git(place, "fast-import", "--quiet", given="".join(COMMIT.format(*one) for one in (("older", 1), ("newer", 2))))
    release = "main~1"
    older = older_release(tmp_path / "older", history, release)
    assert (older / "site_spider" / "file").read_text() == "older"

    git("clone", "--quiet", "--depth", "1", history.as_uri(), str(tmp_path / "shallow"))
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / ".git").write_text("gitdir: /nowhere\n")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.skip.Exception, match="unshallow"):
        older_release(older, tmp_path / "shallow", release)
    with pytest.raises(pytest.skip.Exception, match="no history"):
        older_release(older, tmp_path, release)
    with pytest.raises(pytest.skip.Exception, match="cannot read"):
        older_release(older, tmp_path / "exported", release)
    with pytest.raises(pytest.fail.Exception, match="the history lacks 0000"):
        older_release(older, history, "0" * 40)
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="the history lacks 0000"):
        older_release(older, history, "0" * 40)
