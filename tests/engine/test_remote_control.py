"""Scrapy's RemoteControl costs a start nothing where it is off, and is there where it is on."""

from __future__ import annotations

import subprocess
import sys

import pytest
from scrapy.exceptions import NotConfigured
from scrapy.extensions.remote_control import RemoteControl
from scrapy.utils.test import get_crawler

from site_spider.engine.scrapy_parts import LateRemoteControl

LOAD_ALL = """
import sys
from scrapy.utils.misc import load_object
from scrapy.utils.conf import build_component_list
from scrapy.settings import Settings
settings = Settings()
settings.setmodule("site_spider.settings")
names = build_component_list(settings.getwithbase("EXTENSIONS"))
loaded = [load_object(name).__name__ for name in names]
print(loaded.count("LateRemoteControl"), "aiohttp.web" in sys.modules)
"""


def test_what_it_needs_is_not_imported_where_it_is_off() -> None:
    run = subprocess.run([sys.executable, "-c", LOAD_ALL], capture_output=True, text=True, check=True)
    assert run.stdout == "1 False\n"


def test_the_setting_switches_it_on() -> None:
    settings = {"TWISTED_REACTOR_ENABLED": False}
    on = get_crawler(settings_dict=settings | {"REMOTE_CONTROL_ENABLED": True})
    assert isinstance(LateRemoteControl.from_crawler(on), RemoteControl)
    with pytest.raises(NotConfigured):
        LateRemoteControl.from_crawler(get_crawler(settings_dict=settings | {"REMOTE_CONTROL_ENABLED": False}))
