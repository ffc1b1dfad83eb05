"""The suite of sinks over the WARC sink, which takes no items has no fields of producers and no reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from site_spider.adapters.warc.sink import WarcSink
from tests.contracts import test_sinks as suite
from tests.contracts.sinks import SinkCase
from tests.contracts.warc_results import WarcResults

_SHARED = {
    "test_a_producers_value_is_not_replaced_by_null",
    "test_a_value_that_we_wrote_over_a_producers_is_ours",
    "test_what_is_known_of_many_documents_is_one_question",  # an archive is no store to look pages up in
}
globals().update({name: test for name, test in vars(suite).items() if name.startswith("test_") and name not in _SHARED})


@pytest.fixture
def case(tmp_path: Path) -> SinkCase:
    """The sink on an empty folder, for all tests of the suite."""
    blocked = tmp_path / "file"
    blocked.write_text("a file where a folder should be")
    usual = {"SITE_WARC_MAX_BYTES": 1_000_000_000, "SITE_WARC_PREFIX": "test"}
    return SinkCase(
        name="warc",
        sink=WarcSink,
        reader=WarcResults,
        settings={**usual, "SITE_WARC_DIR": str(tmp_path / "warc")},
        poison={"body_base64": "not base64"},
        poison_reason="body_base64 is not base64",
        away={**usual, "SITE_WARC_DIR": str(blocked)},
        away_words=["SITE_WARC_DIR", str(blocked)],
    )
