"""`task_shell/test.sh` stops the servers that it has started, whatever ends it; here with scripted ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "task_shell"
SCRIPTED = """
servers() {
    printf '%s\n' "$*" >>"$servers_folder/asked"
    [[ $1 != status || $2 == hbase ]] # which runs already
}
check() { CHECK || failed+=("$1"); }
mypy() { :; }
lint-imports() { :; }
shellcheck() { :; }
mkdir -p "$servers_folder"
pytest=(PYTEST)
check_all
"""


@pytest.mark.parametrize(
    ("check", "tests", "code"),
    [
        ("true", "true", 0),
        ("false", "true", 1),
        ("true", "false", 1),
        ("die gone", "true", 1),
        ("true", 'bash -c "kill -TERM $$; exec sleep 600" --', 130),
    ],
    ids=["passes", "a check fails", "tests fail", "ends at once", "SIGTERM"],
)
def test_what_it_has_started_is_stopped(tmp_path: Path, check: str, tests: str, code: int) -> None:
    copy = shutil.copytree(FOLDER, tmp_path / "task_shell") / "test.sh"
    text, main, _ = copy.read_text().rpartition('\nmain "$@"')
    assert main
    copy.write_text(text + SCRIPTED.replace("CHECK", check).replace("PYTEST", tests))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
    ran = subprocess.run([copy], env=kept, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == code, ran.stderr
    asked = (tmp_path / ".servers" / "tests" / "asked").read_text().splitlines()
    verb, *names = asked[-1].split()
    assert (verb, sorted(names)) == ("stop", ["elasticsearch", "kafka", "redis"])
