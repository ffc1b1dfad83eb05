"""The JSON of a seed: what is refused before any field is looked at."""

from time import thread_time

import pytest

from site_spider.seed.seed import parse_seed
from site_spider.seed.strict_json import MAX_VALUES
from tests.seed.seed_messages import message, parsed, reason_of


def test_a_utf8_byte_order_mark_is_skipped():
    """Editors on Windows write it."""
    assert parse_seed(b"\xef\xbb\xbf" + message()) == parsed()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "tombstone: the message has no value"),
        (b"", "message: empty"),
        (b" \r\n\t", "message: empty"),
        (b"\xef\xbb\xbf", "message: empty"),
        (b"http://example.com/", "message: not JSON: Expecting value at character 1"),
        (b'{"url": "http://a/"', "message: not JSON: Expecting ',' delimiter at character 20"),
        (b'{"url": "http://a/"} x', "message: not JSON: Extra data"),
        (b'{"url": "http://a/\n"}', "message: not JSON: Invalid control character"),
        (b"{'url': 'http://a/'}", "message: not JSON"),
        (b"[]", "message: a list, but must be a JSON object"),
        (b'"http://a/"', "message: 'http://a/', but must be a JSON object"),
        (b"null", "message: null, but must be a JSON object"),
        (b"{}", "url: missing"),
        (b'{"URL": "http://a/"}', "url: missing"),
        (b'{"url": "http://a/\xff"}', "message: not UTF-8 at byte 19"),
        (b'{"url": "http://a/\xed\xa0\x80"}', "message: not UTF-8"),
        (message().decode().encode("utf-16"), "message: not UTF-8 at byte 1"),
        (message().decode().encode("utf-16-le"), "message: not JSON"),
        (b'{"url": "http://a/", "url": "http://b/"}', "message: key 'url' stands twice in one object"),
        (
            b'{"url": "http://a/", "meta": {"x": [{"a\\u0000": 1, "a\\u0000": 1}]}}',
            "key 'a\\x00' stands twice",
        ),
        (b'{"url": "http://a/", "priority": NaN}', "message: NaN is not JSON"),
        (b'{"url": "http://a/", "meta": {"x": Infinity}}', "message: Infinity is not JSON"),
        (b'{"url": "http://a/", "meta": {"x": -Infinity}}', "message: -Infinity is not JSON"),
        (b'{"url": "http://a/", "meta": {"x": 1e999}}', "message: number '1e999' is too large"),
        (b'{"url": "http://a/", "meta": {"x": -1e999}}', "message: number '-1e999' is too large"),
        (
            b'{"url": "http://a/", "meta": {"x": ' + b"9" * 5000 + b"}}",
            "a number of 5000 digits is too large",
        ),
        (b'{"url": "http://a/", "meta": {"x": "\\ud800"}}', "meta: holds a lone surrogate"),
        (b'{"url": "http://a/", "meta": {"\\uDFFF": 1}}', "meta: holds a lone surrogate"),
        (b'{"url": "http://a/", "\\udc00": 1}', "\\udc00: holds a lone surrogate"),
        (b'{"url": "http://a/\\ud800"}', "url: holds a lone surrogate"),
    ],
)
def test_a_message_that_is_not_a_json_object_of_one_meaning_makes_a_dead_letter(value, why):
    """Two readers must not be able to take it differently."""
    assert why in reason_of(value)


def test_a_pair_of_surrogate_escapes_is_one_character():
    """JSON writes characters beyond U+FFFF so."""
    seed = parse_seed(b'{"url": "http://a/", "meta": {"x": "\\ud83d\\ude00"}}')
    assert seed.extra == {"x": "\U0001f600"}


def nested(levels):
    """A valid seed of so many levels, the message itself counted."""
    return b'{"url": "http://a/", "meta": {"x": ' + b"[" * (levels - 2) + b"]" * (levels - 2) + b"}}"


def test_nesting_is_limited_to_32_levels():
    """Brackets inside strings and beside each other do not count."""
    assert parse_seed(nested(32)).url == "http://a/"
    assert reason_of(nested(33)) == "message: nested deeper than 32 levels"
    assert parsed(meta={"x": '["{[\\' * 100, "y": [[]] * 100}).extra["y"] == [[]] * 100


@pytest.mark.parametrize("value", [b"[" * 999_999, b'{"a":' * 199_999, b'["\\"[' * 199_999, b'"' * 999_999])
def test_deep_nesting_of_any_size_is_a_seed_error(value):
    """Never a RecursionError, and never a long search."""
    assert reason_of(value).startswith("message: ")


def test_a_message_of_one_megabyte_is_too_large():
    """One byte less is not."""
    frame = len(b'{"url": "http://a/", "x": ""}')
    assert parse_seed(b'{"url": "http://a/", "x": "%s"}' % (b"x" * (999_999 - frame))).unknown_fields == (
        "x",
    )
    value = b'{"url": "http://a/", "x": "%s"}' % (b"x" * (1_000_000 - frame))
    assert reason_of(value) == "message: 1000000 bytes, but must be less than 1000000"


def meta_of(text):
    """A message with this for a key of its meta."""
    return b'{"url": "http://a/", "meta": {"x": %s}}' % text


def list_of(value, count):
    """So many of a value."""
    return meta_of(b"[" + b",".join([value] * count) + b"]")


@pytest.mark.parametrize("value", [b"1", b'""', b"[]", b"{}", b"1e9", rb'"\\\","', b'"[{,"'])
def test_the_number_of_values_is_limited(value):
    """Of 2 bytes each is made 64 and more. What stands inside strings does not count."""
    fits = MAX_VALUES - 5 if value[:1] not in b"[{" else (MAX_VALUES - 5) // 2
    assert len(parse_seed(list_of(value, fits)).extra["x"]) == fits
    assert "more than 10000 values" in reason_of(list_of(value, MAX_VALUES + 1))


HOSTILE = [
    b"[" * 999_000,
    list_of(b"1", 450_000),
    list_of(b'""', 300_000),
    list_of(b"[" * 27 + b"]" * 27, 16_000),
    list_of(b"1e308", 150_000),
    meta_of(b"{" + b",".join(b'"%d":1' % number for number in range(90_000)) + b"}"),
    meta_of(b"9" * 900_000),
    meta_of(b"0." + b"9" * 900_000),
    meta_of(b"1e" + b"9" * 900_000),
    meta_of(b'"' + rb"\ud83d" * 150_000 + b'"'),
    b'"' * 999_000,
    b'{"url": "http://a/' + b"a" * 900_000 + b'"}',
    b'{"url": "http://a/", "headers": {"X": [%s]}}' % b",".join([b'""'] * 9_000),
    b'{"url": "http://a/", "cookies": [%s]}' % b",".join([b'{"name":"a","value":"b"}'] * 3_000),
]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_message_costs_little_before_it_is_refused(value):
    """It is parsed on the intake's thread, which shares the interpreter with the event loop."""
    began = thread_time()
    reason_of(value)
    assert thread_time() - began < 0.1


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (rb"\"", 400_000),
        (rb"\\", 400_000),
        (rb"\u65e5", 150_000),
        (b",{[", 300_000),
        ("é".encode(), 9_000),
    ],
)
def test_a_long_text_costs_little_and_stays_text(text, count):
    """As does making an object of it for the result."""
    began = thread_time()
    seed = parse_seed(meta_of(b'"' + text * count + b'"'))
    assert len(seed.extra["x"]) >= count
    assert len(seed.extra_json) < 1_000_000
    assert thread_time() - began < 0.1
