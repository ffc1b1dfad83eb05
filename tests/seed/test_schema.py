"""The JSON Schema of seeds says what the parser says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from site_spider.errors import SeedError
from site_spider.seed.seed import FORBIDDEN_META, parse_seed
from tools.schemas import seed_schema

CHECK = Draft202012Validator(seed_schema())

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-2_000_000, 2_000_000), st.sampled_from([0.5, -1.5, 4000.5]),
    st.text(st.sampled_from("aZ9 ;=\t\n\x00\x7f\x85é-"), max_size=6), st.just([]),
    st.just({}), st.just(["a"]),
    st.just({"a": "b"}), st.just([{"name": "n", "value": 1}]), st.just([{"name": "n"}]), st.just([None]),
)  # fmt: skip
WORDS = ["true", "False", "get", "POST", "TRACE", "parse", "other", "utf-8", "", "x" * 512, "x" * 513]
VALUES = ANYTHING | st.sampled_from(WORDS)
URLS = st.sampled_from([
    "http://h.test/", "HTTPS://h.test", "http://h.test?q", "ftp://h.test/", "http://", "http:///p", "h.test",
    "http://u@h.test/", "http://h.test/ a", "http://h.test/\t", "http://h.test\\p", "http://h.test/\n",
    "http://h.test/" + "x" * 8_200, "http://h.test/é",
])  # fmt: skip
META = [
    "url_id", "task_id", "NotExtract", "depth", "parent_url_id", "seed_url_id", "dont_redirect", "dont_retry",
    "max_retry_times", "download_timeout", "if_changed", "etag", "anything", "_x", "site_x", "site_job",
    *sorted(FORBIDDEN_META),
]  # fmt: skip
FIELDS = [
    "method", "body", "priority", "dont_filter", "callback", "errback", "cb_kwargs", "flags", "_class",
    "other", "headers", "cookies",
]  # fmt: skip
HEADERS = st.dictionaries(
    st.sampled_from(["A", "x-b", "Host", "HOST", "te", "tes", "bad name", "", "Cookie", "a\n"]), VALUES, max_size=2
)


def parses(seed: Any) -> bool:
    try:
        parse_seed(json.dumps(seed).encode())
    except SeedError:
        return False
    return True


@given(
    URLS | VALUES,
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=2),
    st.none() | st.dictionaries(st.sampled_from(META), VALUES, max_size=2),
    st.none() | HEADERS,
)
def test_schema_and_parser_agree(url: Any, fields: Any, meta: Any, headers: Any) -> None:
    seed = {"url": url, "headers": headers, **fields, "meta": meta}
    assert CHECK.is_valid(seed) == parses(seed), seed


@pytest.mark.parametrize("seed", [[], {}, None, "text", {"meta": {}}, {"url": None}, {"url": 1}])
def test_what_has_no_url_is_no_seed_for_both(seed: Any) -> None:
    assert not CHECK.is_valid(seed)
    assert not parses(seed)


@given(st.sampled_from(["task_id", "url_id", "NotExtract", "depth"]), VALUES)
def test_they_agree_on_fields_beside_the_url(name: str, value: Any) -> None:
    seed = {"url": "http://h.test/", name: value}
    assert CHECK.is_valid(seed) == parses(seed)


@pytest.mark.parametrize(
    "more", [{"task_id": "a\n"}, {"meta": {"url_id": "a\n"}}, {"headers": {"X-A": "a\n"}}, {"method": "GET\n"}]
)
def test_a_line_feed_at_the_end_is_refused_by_both(more: dict[str, Any]) -> None:
    seed = {"url": "http://h.test/", **more}
    assert not CHECK.is_valid(seed)
    assert not parses(seed)
