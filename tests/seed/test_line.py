"""Lines of a file of seeds: how they become messages."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.errors import SeedError
from site_spider.seed.seed import parse_seed, seed_message
from tests.seed.seed_messages import URL


@pytest.mark.parametrize(
    ("line", "options", "document"),
    [
        (URL, {}, {"url": URL}),
        (f"  {URL}\r\n", {}, {"url": URL}),
        (f"\ufeff{URL}\n", {}, {"url": URL}),
        (
            URL,
            {"task_id": "job", "method": "HEAD", "not_extract": True},
            {"url": URL, "method": "HEAD", "meta": {"task_id": "job", "NotExtract": True}},
        ),
        (
            '{"url": "http://example.com/a", "method": "PUT", "meta": {"task_id": "x", "NotExtract": false}}',
            {"task_id": "job", "method": "HEAD", "not_extract": True},
            {"url": URL, "method": "PUT", "meta": {"task_id": "x", "NotExtract": False}},
        ),
        (
            '{"url": "http://example.com/a", "meta": {"x": "ü"}, "other": 1.5}',
            {"task_id": "job"},
            {"url": URL, "meta": {"x": "ü", "task_id": "job"}, "other": 1.5},
        ),
    ],
)
def test_a_line_becomes_a_message_and_options_fill_in_what_it_leaves_open(line, options, document):
    key, value = seed_message(line, **options)
    assert key == b"example.com"
    assert json.loads(value) == document


def test_fields_of_meta_beside_the_url_go_into_meta():
    moved = []
    line = '{"url": "http://a/", "task_id": "x", "depth": null, "NotExtract": "true", "meta": {"url_id": 1}}'
    _, value = seed_message(line, task_id="job", not_extract=True, moved=moved.append)
    assert json.loads(value) == {
        "url": "http://a/",
        "meta": {"url_id": 1, "task_id": "x", "NotExtract": "true", "depth": None},
    }
    assert moved == [["task_id", "depth", "NotExtract"]]


def test_conditions_beside_the_url_are_as_documented_and_nothing_is_said_of_them():
    line = '{"url": "http://a/", "if_changed": true, "etag": "\\"x\\""}'
    _, value = seed_message(line, moved=pytest.fail)
    assert json.loads(value)["meta"] == {"if_changed": True, "etag": '"x"'}


def test_nothing_is_said_of_a_line_that_is_refused():
    with pytest.raises(SeedError, match="task_id"):
        seed_message('{"url": "http://a/", "task_id": "x", "meta": {"task_id": "y"}}', moved=pytest.fail)


def test_a_producer_that_knows_no_spider_takes_any_name_of_a_callback():
    line = '{"url": "http://a/", "callback": "article"}'
    assert b"article" in seed_message(line, callbacks=None)[1]
    assert "größe".encode() in seed_message(line.replace("article", "größe"), callbacks=None)[1]
    with pytest.raises(SeedError, match="'system-x' is not allowed"):
        seed_message(line.replace("article", "system-x"), callbacks=None)
    with pytest.raises(SeedError, match="known: parse"):
        seed_message(line)


def test_the_key_of_a_message_is_the_host_in_its_one_spelling():
    """So all seeds of a host land in one partition."""
    assert seed_message("HTTP://BÜCHER.example.:8080/x")[0] == b"xn--bcher-kva.example"


@pytest.mark.parametrize(
    ("line", "options", "why"),
    [
        ("", {}, "line: empty"),
        (" \n", {}, "line: empty"),
        ("example.com", {}, "url: 'example.com' has no scheme"),
        ("http://a/b c", {}, "space"),
        ('"meta": {', {}, "one object in one line"),
        ('[{"url": "http://a/"}]', {}, "one object in one line"),
        ("http://a/\udcff", {}, "line: not UTF-8"),
        ('{"url": "http://a/\udcff"}', {}, "line: not UTF-8"),
        ('{"url": "http://a/"', {}, "message: not JSON"),
        ('{"url": "http://a/", "url": "http://a/"}', {}, "stands twice"),
        ('{"url": "http://a/", "meta": []}', {"task_id": "job"}, "meta: a list"),
        ("#comment", {}, "no scheme"),
        (URL, {"method": "BREW"}, "method: 'BREW'"),
    ],
)
def test_a_bad_line_is_refused_with_the_reason(line, options, why):
    with pytest.raises(SeedError) as caught:
        seed_message(line, **options)
    assert why in caught.value.reason


@given(st.text())
def test_arbitrary_lines_raise_nothing_but_a_seed_error(line):
    try:
        key, value = seed_message(line, task_id="job")
    except SeedError:
        return
    assert key
    assert parse_seed(value).task_id == "job"
