"""Another Scrapy than the pinned one is refused, for its inside may differ."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import scrapy
from scrapy.crawler import Crawler

from site_spider import installation
from site_spider.errors import ConfigError
from site_spider.spiders.crawl_spider import SeedSpider
from tests.commands.project import ROOT, environment
from tests.in_process.engine import settings_for

LINE = (
    "Scrapy 2.18.1 is installed, but site_spider works with Scrapy 2.19.0 only; "
    "install it with: pip install -r requirements.txt"
)
OTHER = """
import sys
import scrapy
scrapy.__version__ = "2.18.1"
{missing}
from scrapy.cmdline import execute
execute(["scrapy", *sys.argv[1:]])
"""
# as in a version in which something that this project imports is called otherwise
MISSING = "import scrapy.exceptions; del scrapy.exceptions.CannotResolveHostError"


def test_the_version_needed_is_the_pinned_one() -> None:
    """And the one that the tests run with."""
    (pinned,) = re.findall(r"^Scrapy==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert installation.NEEDED == pinned == scrapy.__version__


@pytest.mark.parametrize(
    ("command", "missing"), [(["crawl", "crawl_spider"], ""), (["seed", "http://h.test/"], MISSING)]
)
def test_every_command_says_so_in_one_line(tmp_path: Path, command: list[str], missing: str) -> None:
    """Exit code 78, as for a wrong setting: starting again does not help."""
    program = [sys.executable, "-c", OTHER.format(missing=missing), *command]
    ran = subprocess.run(
        program, cwd=ROOT, env=environment(tmp_path), capture_output=True, timeout=300, check=False, text=True
    )
    assert ran.returncode == 78
    assert ran.stderr == f"scrapy: {LINE}\n"
    assert ran.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_script_gets_an_error_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not come by the commands."""
    monkeypatch.setattr(scrapy, "__version__", "2.18.1")
    crawler = Crawler(SeedSpider, settings_for(tmp_path))
    with pytest.raises(ConfigError) as refused:
        SeedSpider.from_crawler(crawler)
    assert str(refused.value) == LINE
