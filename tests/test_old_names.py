"""Paths of the release before go on working for one release."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from site_spider.old_names import NEW_NAMES


@pytest.mark.parametrize("old", NEW_NAMES)
def test_an_old_name_leads_to_the_module_at_its_new_place(old: str) -> None:
    new = importlib.import_module(NEW_NAMES[old])
    public = next(name for name in vars(new) if not name.startswith("_"))
    assert getattr(importlib.import_module(old), public) is getattr(new, public)


def test_each_old_name_is_said_once_with_the_new_one() -> None:
    code = (
        "import site_spider.core.sink; from site_spider.core.sink import Record; import site_spider.core.sink"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [
        "site_spider.core.sink has moved to site_spider.contracts.sink; "
        "the old name goes with the next release"
    ]


def test_a_class_is_loaded_by_its_old_path_as_scrapy_loads_it() -> None:
    from scrapy.utils.misc import load_object

    for old, new in {
        "kafka_sink.KafkaSink": "kafka.sink.KafkaSink",
        "kafka.KafkaSeedLog": "kafka.seed_log.KafkaSeedLog",
        "elasticsearch.ElasticsearchSink": "elasticsearch.sink.ElasticsearchSink",
        "hbase.HBaseSink": "hbase.sink.HBaseSink",
    }.items():
        assert load_object(f"site_spider.adapters.{old}") is load_object(f"site_spider.adapters.{new}")


def test_what_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("site_spider.core.nothing")
