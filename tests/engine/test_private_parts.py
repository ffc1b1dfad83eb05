"""Private parts of Scrapy and Twisted are used in engine/ only, and each use there is documented."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
from scrapy.exceptions import NotConfigured
from scrapy.extensions.remote_control import RemoteControl
from scrapy.utils.test import get_crawler

from site_spider.engine import scrapy_parts
from site_spider.engine.scrapy_parts import LateRemoteControl
from tests.engine.private_parts import modules, uses

ROOT = Path(__file__).resolve().parents[2]
MODULES = {module.__name__: module for module in modules()}
ENGINE = {name: module for name, module in MODULES.items() if name.startswith("site_spider.engine")}


@pytest.mark.parametrize("name", sorted(MODULES.keys() - ENGINE.keys()))
def test_no_private_part_is_used_outside_the_engine_folder(name: str) -> None:
    assert uses(MODULES[name]) == set()


@pytest.mark.parametrize(
    "source",
    [
        "from twisted.internet._resolver import GAIResolver",
        "from scrapy.exceptions import _InvalidOutput",
        "def f(crawler):\n    return crawler._engine",
        "def f(engine):\n    return getattr(engine, '_slot')",
        "from scrapy.dupefilters import RFPDupeFilter\nclass A(RFPDupeFilter):\n"
        "    def f(self):\n        return self._fingerprints",
        "from scrapy.downloadermiddlewares.retry import RetryMiddleware\nclass A(RetryMiddleware):\n"
        "    def _retry(self, request, reason):\n        return None",
    ],
)
def test_the_search_finds(source: str, tmp_path: Path) -> None:
    """Each way of using a private part."""
    file = tmp_path / "module_with_a_use.py"
    file.write_text(source, encoding="utf-8")
    module = types.ModuleType(file.stem)
    module.__file__ = str(file)
    exec(compile(source, str(file), "exec"), vars(module))
    assert uses(module) != set()


def test_every_use_is_documented() -> None:
    """The list names each private part that engine/ uses, and no other."""
    text = (ROOT / "docs" / "scrapy-internals.md").read_text(encoding="utf-8")
    described = {
        name.rpartition(".")[2]
        for row in re.findall(r"^- (.*?):\s+`tests/", text, re.MULTILINE | re.DOTALL)
        for name in re.findall(r"`([\w.]+)`", row)
    }
    used = set().union(*map(uses, ENGINE.values()))
    assert used - described == set()
    assert {name for name in described if name.startswith("_")} - used == set()


# --- loading ---------------------------------------------------------------------------------------------

PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def test_what_a_hint_says_to_install_is_what_the_extra_has() -> None:
    """By the names of the packages: one of the name of this project on an index would not be ours."""
    extras = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["optional-dependencies"]
    hints = scrapy_parts._INSTALLS
    for name, said in {"redis": hints["redis"], "hbase": hints["happybase"]}.items():
        assert re.findall(r"'([^']+)'", said) == extras[name]


# --- Scrapy's RemoteControl costs a start nothing where it is off ----------------------------------------

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
