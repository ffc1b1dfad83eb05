"""The example of a sink of one's own, docs/examples/lines_sink.py, behind a real crawl."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from docs.examples.lines_sink import LinesSink
from site_spider.contracts.sink import Answer, Record
from site_spider.errors import SinkUnavailable
from site_spider.service import config as parts
from tests.in_process.engine import crawl, settings_for

ROOT = Path(__file__).resolve().parents[2]


def test_a_crawl_leaves_the_lines_of_its_documents(tmp_path: Path) -> None:
    seeds = [{"url": f"http://h.test/{n}", "meta": {"url_id": f"{n}"}} for n in range(20)]
    crawled = crawl(tmp_path, seeds, SITE_SINKS="local,docs.examples.lines_sink.LinesSink")
    (path,) = tmp_path.glob("results-*.jsonl")
    written = {line["url_id"]: line for line in map(json.loads, path.read_text().splitlines())}
    assert (written, crawled.lag) == (crawled.documents, 0)


def test_what_json_has_no_words_for_is_refused_alone_and_a_bad_folder_is_an_outage(tmp_path: Path) -> None:
    bad, good = Record("a", {"x": {1}}, 1), Record("b", {"x": 1}, 1)
    answers = [verdict.answer for verdict in asyncio.run(LinesSink(tmp_path).write([bad, good]))]
    assert answers == [Answer.REJECTED, Answer.ACKNOWLEDGED]
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkUnavailable, match="SITE_DATA_DIR"):
        asyncio.run(LinesSink(tmp_path / "file").open())


def test_a_copy_of_the_example_is_found_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever Python finds modules."""
    shutil.copy(ROOT / "docs" / "examples" / "lines_sink.py", tmp_path / "sinks_of_mine.py")
    monkeypatch.syspath_prepend(tmp_path)
    local, mine = parts.sinks(settings_for(tmp_path, SITE_SINKS="local,sinks_of_mine.LinesSink"))
    assert (local.name, mine.name) == ("local", "lines")
    assert os.fspath(tmp_path) in str(sys.modules["sinks_of_mine"].__file__)
