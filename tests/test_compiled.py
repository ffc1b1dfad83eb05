"""The same tests pass with compiled modules. hatch_build.py makes a folder of them, the first on the path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hatch_build
from site_spider import installation
from tests.commands.project import Project
from tests.debian import program

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_SECONDS = 1500  # on a busy machine, with the compilation
pytestmark = [pytest.mark.timeout(TIMEOUT_SECONDS), pytest.mark.xdist_group("compiled")]
LEVEL = {"COMPILE_LEVEL": "0"}  # the same code, in a third of the time

FOLDERS = ("ledger", "seed", "page", "frontier", "intake", "dupefilter", "results", "engine", "service", "download")
PURE = (
    *("tests/ledger", "tests/seed", "tests/page/test_links.py", "tests/page/test_url.py", "tests/test_escape.py"),
    *("tests/page/test_decode.py", "tests/frontier/test_frontier.py", "tests/frontier/test_politeness.py"),
    *("tests/intake/test_room.py", "tests/results/test_batches_and_retries.py", "tests/download/test_answer.py"),
    *("tests/download/test_connection.py", "tests/dupefilter/test_dupefilter.py"),
)
CRAWLS = ("tests/frontier/test_link_slices.py", "tests/intake/test_repeats.py")
# The first reads sources by inspect; the next put an object of another class in the place of a compiled one; the others
# replace methods, which compiled code does not look up.
WITHOUT = (
    "tests/engine/test_private_parts.py::test_no_private_part_is_used_outside_the_engine_folder",
    "tests/download/test_connection.py"
    "::test_a_soon_answer_of_a_server_that_closes_is_taken_unless_our_request_was_left_unread",
    "tests/frontier/test_politeness.py::test_what_is_fenced_while_fenced_requests_are_taken_out_is_looked_for_again",
    "tests/frontier/test_cannot_begin.py::test_a_seed_that_cannot_be_queued_is_set_aside",
    "tests/frontier/test_cannot_begin.py::test_an_error_of_the_frontier_counts_as_a_death_and_cannot_come_for_ever",
    "tests/frontier/test_cannot_begin.py::test_the_commit_of_a_crawl_that_fails_names_its_owner",
    "tests/frontier/test_retry_and_redirect.py::test_retries_wait_behind_the_seeds_redirected_ones_too",
    "tests/results/test_delivery.py"
    "::test_a_bug_after_a_record_was_accepted_is_told_to_the_owner_and_not_to_its_submitter",
)


def run(*command: str, folder: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SITE_", "PYTEST_"))}
    path = {"PYTHONPATH": str(folder)} if folder else {}
    return subprocess.run(
        command,
        cwd=ROOT,
        env=kept | path | variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def folder() -> Path:
    """With the package and its compiled modules."""
    program("gcc", "build-essential python3-dev")
    built = run(sys.executable, "hatch_build.py", **LEVEL)
    assert built.returncode == 0, built.stderr[-3000:]
    return Path(built.stdout.strip())


def passes(folder: Path, *tests: str) -> None:
    """With the compiled modules: -P and append keep the checkout behind them."""
    options = ("-P", "-m", "pytest", "--import-mode=append", "-q", "-p", "no:cacheprovider", "-m", "not servers")
    without = [f"--deselect={name}" for name in WITHOUT]
    ran = run(sys.executable, *options, *without, *tests, folder=folder)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]


def test_pure_tests_and_crawls_pass(folder: Path) -> None:
    passes(folder, *PURE, *CRAWLS)


@pytest.mark.nightly
def test_all_tests_of_the_folders_pass(folder: Path) -> None:
    passes(folder, *(f"tests/{name}" for name in FOLDERS), "tests/test_escape.py")


def test_a_crawl_ends_and_says_that_it_is_compiled(folder: Path, tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.produce("seeds", (None, b'{"url": "http://127.0.0.1:1/"}'))
    scrapy = str(Path(sys.executable).with_name("scrapy"))
    given = {"SITE_ALLOW_PRIVATE_HOSTS": "true", "SITE_IDLE_CLOSE_SECONDS": "1", "RETRY_TIMES": "0"}
    given |= {"SITE_DATA_DIR": str(tmp_path)}
    crawl = run(scrapy, "crawl", "crawl_spider", folder=folder, **given)
    assert crawl.returncode == 0
    assert f"site_spider is compiled ({len(hatch_build.modules())} modules)" in crawl.stderr
    assert "ConnectionRefusedError" in project.within("results").stdout


def test_a_checkout_is_pure(tmp_path: Path) -> None:
    assert "site_spider is pure Python" in Project(tmp_path).within("version", "-v").stdout


def test_a_spider_that_is_newer_than_the_compiled_copy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do: the copy does not have it."""
    copy, checkout = tmp_path / ".compiled" / "1" / "site_spider", tmp_path / "site_spider"
    for folder in (copy, checkout):
        folder.mkdir(parents=True)
        (folder / "settings.py").write_text("BOT_NAME = 'site_spider'\n")
    monkeypatch.setattr(installation, "_PACKAGE", copy)
    assert installation.left_out() == ""
    (checkout / "quotes.py").touch()
    told = f"{copy.parent} runs, which is older than quotes.py of {checkout} (changed files: 1): run hatch_build.py"
    assert told in installation.left_out()
    assert told in Project(tmp_path).within("crawl", "quotes").stderr
    (checkout / "settings.py").write_text("BOT_NAME = 'other'\n")
    assert "(changed files: 2)" in installation.left_out()


@pytest.mark.parametrize("package", ["/site_spider", "/app/site_spider"])
def test_a_checkout_may_stand_just_below_the_root(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in many containers."""
    monkeypatch.setattr(installation, "_PACKAGE", Path(package))
    assert installation.left_out() == ""


def test_what_users_change_is_pure() -> None:
    """Spiders may set any value in a field of a result, and HBase's reader asks for the fields' types, which compiled
    ones hide. A store of marks may inherit from one of ours, or from their protocol.
    """
    pure = {"site_spider/results/document.py", "site_spider/dupefilter/filters.py"}
    assert pure.isdisjoint(hatch_build.modules())


def test_a_missing_compiler_is_named_with_its_package() -> None:
    built = run(sys.executable, "hatch_build.py", CC="/no/compiler", COMPILE_LEVEL="1")
    assert built.returncode == 1
    assert built.stderr.startswith("hatch_build.py: there is no C compiler: '/no/compiler' is not on the PATH;")
    assert "apt-get install build-essential" in built.stderr
