"""Scrapy's RemoteControl costs a start nothing where it is off, and works where it is on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from scrapy.crawler import Crawler
from scrapy.extensions.remote_control import RemoteControl

from tests.in_process.engine import crawl

LOAD_ALL = """
import sys
from scrapy.utils.misc import load_object
from scrapy.utils.conf import build_component_list
from scrapy.settings import Settings
settings = Settings()
settings.setmodule("site_spider.settings")
for name in build_component_list(settings.getwithbase("EXTENSIONS")):
    load_object(name)
print("aiohttp.web" in sys.modules)
"""


def test_what_it_needs_is_not_imported_where_it_is_off() -> None:
    run = subprocess.run([sys.executable, "-c", LOAD_ALL], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


@pytest.mark.parametrize("is_on", [False, True])
def test_the_setting_switches_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_on: bool) -> None:
    for name in ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):  # where it says its port
        monkeypatch.setenv(name, str(tmp_path))
    found = []

    def look(crawler: Crawler) -> bool:
        found.append(crawler.get_extension(RemoteControl))
        return True

    crawl(tmp_path, [{"url": "http://host.test/"}], until=look, REMOTE_CONTROL_ENABLED=is_on)
    assert [extension is not None for extension in found] == [is_on]
