"""Scrapy's own tests pass with our classes; what is left out stands in docs/scrapy-suite.md."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest
import scrapy

from tests.acceptance.pip import pip
from tests.commands.project import ROOT

PLUGIN = ROOT / "tests" / "scrapy_suite"
TABLE = ROOT / "docs" / "scrapy-suite.md"
MODULES = [
    "scheduler", "scheduler_base", "pqueues", "squeues_request", "dupefilters",
    "engine", "engine_close_spider", "engine_download", "engine_loop", "engine_stop_download_bytes",
    "engine_stop_download_headers", "core_downloader", "core_scraper", "downloadermiddleware",
    "downloadermiddleware_retry", "downloadermiddleware_redirect",
    "downloadermiddleware_redirect_metarefresh", "downloaderslotssettings", "crawl", "spider_crawl",
    "spider_start", "closespider", "signals", "request_left", "request_cb_kwargs",
    "request_attribute_binding",
]  # fmt: skip
FEWEST = 500  # tests: should the modules become empty, it is noticed
LONGEST_SECONDS = 1500

_ROW = re.compile(r"^\| `(test_[^`]+)` \| (left out|\d+ skips?) \| (.+) \|$", re.MULTILINE)
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)
_SKIPPED = re.compile(r"^SKIPPED (\S+?)::", re.MULTILINE)
_USED = re.compile(r"^used (\w+) (\d+)$", re.MULTILINE)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """The source distribution without its `scrapy`: the installed one is tested."""
    version = scrapy.__version__
    pip("download", "--no-deps", "--no-binary", "Scrapy", f"Scrapy=={version}", "--dest", str(tmp_path))
    requirements = str(PLUGIN / "requirements.txt")
    pip("install", "--no-deps", "--target", str(tmp_path / "packages"), "--requirement", requirements)
    with tarfile.open(tmp_path / f"scrapy-{version}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12 has none
        archive.extractall(tmp_path)
    folder = tmp_path / f"scrapy-{version}"
    shutil.rmtree(folder / "scrapy")
    return folder


def rows() -> dict[str, str]:
    """What the table says of each test that is left out, and of each file with tests that skip."""
    found = _ROW.findall(TABLE.read_text())
    assert all(reason.strip() for _, _, reason in found)
    return {f"tests/{test}": what for test, what, _ in found}


def run(suite: Path, *tests: str) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SITE_", "PYTEST_"))}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (suite.parent / "packages", PLUGIN, ROOT)))
    environment["TMPDIR"] = str(suite.parent)  # some leave files there
    # hypothesis is a plugin of ours that Scrapy's tests know nothing of
    options = ["-p", "ours_in_scrapy", "-p", "no:hypothesispytest", "-p", "no:cacheprovider"]
    options += ["-q", "-rsfE", "--no-fold-skipped", "--timeout", "60"]
    running = subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=suite, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = running.communicate(timeout=LONGEST_SECONDS)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
    return running.returncode, output


def passed(suite: Path, left_out: list[str]) -> str:
    """A run without those. Some of Scrapy's tests look at the clock, so what fails is tried again."""
    modules = [f"tests/test_{module}.py" for module in MODULES]
    code, output = run(suite, *(f"--deselect={test}" for test in left_out), *modules)
    repeated = output
    for _ in range(3):
        if code != 1 or not (failed := _FAILED.findall(repeated)):
            break
        code, repeated = run(suite, *failed)
    assert code == 0, repeated[-6000:]
    return output


@pytest.mark.index
def test_scrapys_own_tests_pass_with_our_classes(suite: Path) -> None:
    """And skip what the table says they skip."""
    table = rows()
    left_out = [test for test, what in table.items() if what == "left out"]
    output = passed(suite, left_out)
    print(output[-1500:])
    used = {name: int(count) for name, count in _USED.findall(output)}
    assert len(used) == 6
    assert all(used.values()), used
    summary = output.splitlines()[-1]
    count = re.search(r"(\d+) passed", summary)
    assert count is not None
    assert int(count[1]) >= FEWEST
    assert f"{len(left_out)} deselected" in summary
    skipped = Counter(_SKIPPED.findall(output))
    assert sum(skipped.values()) == int((re.search(r"(\d+) skipped", summary) or ["0", "0"])[1])
    assert skipped == {test: int(what.split()[0]) for test, what in table.items() if what != "left out"}
