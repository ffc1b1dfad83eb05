"""The JSON of a seed: what is refused before any field is looked at."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from site_spider.errors import SeedError
from site_spider.seed.fields import MAX_MESSAGE_BYTES, MAX_VALUES
from site_spider.seed.seed import parse_seed
from tests.growth import assert_grows
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
        (
            b"http://example.com/",
            "message: not JSON: Expecting value at character 1; it must be one JSON object in UTF-8, such as "
            '{"url": "http://host/path"}',
        ),
        (b'{"url": "http://a/"', "message: not JSON: Expecting ',' delimiter at character 20"),
        (b'{"url": "http://a/"} x', "message: not JSON: Extra data"),
        (b'{"url": "http://a/\n"}', "message: not JSON: Invalid control character"),
        (b"{'url': 'http://a/'}", "message: not JSON"),
        (b"[]", "message: a list, but must be one JSON object"),
        (b'"http://a/"', "message: 'http://a/', but must be one JSON object"),
        (b"null", "message: null, but must be one JSON object"),
        (b'\0\0\0\0\1{"url": "http://a/"}', "it must be one JSON object in UTF-8, such as"),  # of a schema registry
        (b"{}", "url: missing; it must stand in the outermost object, which has no field"),
        (b'{"URL": "http://a/"}', "url: missing; it must stand in the outermost object, which has 'URL'"),
        (b'{"schema": {}, "payload": {"url": "http://a/"}}', "which has 'schema', 'payload'"),  # of Kafka Connect
        (b'{"url": "http://a/\xff"}', "message: not UTF-8 at byte 19"),
        (b'{"url": "http://a/\xed\xa0\x80"}', "message: not UTF-8"),
        (message().decode().encode("utf-16"), "message: not UTF-8 at byte 1"),
        (message().decode().encode("utf-16-le"), "message: not JSON"),
        (b'{"url": "http://a/", "url": "http://b/"}', "message: key 'url' stands twice in one object"),
        (b'{"url": "http://a/", "meta": {"x": [{"a\\u0000": 1, "a\\u0000": 1}]}}', "key 'a\\x00' stands twice"),
        (b'{"url": "http://a/", "priority": NaN}', "message: NaN is not JSON"),
        (b'{"url": "http://a/", "meta": {"x": Infinity}}', "message: Infinity is not JSON"),
        (b'{"url": "http://a/", "meta": {"x": -Infinity}}', "message: -Infinity is not JSON"),
        (b'{"url": "http://a/", "meta": {"x": 1e999}}', "message: number '1e999' is too large"),
        (b'{"url": "http://a/", "meta": {"x": -1e999}}', "message: number '-1e999' is too large"),
        (b'{"url": "http://a/", "meta": {"x": ' + b"9" * 5000 + b"}}", "a number of 5000 digits is too large"),
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
    assert parse_seed(nested(32)).url == "http://a/"
    assert reason_of(nested(33)) == "message: nested deeper than 32 levels"
    assert parsed(meta={"x": '["{[\\' * 100, "y": [[]] * 100}).extra["y"] == [[]] * 100


@pytest.mark.parametrize("value", [b"[" * 999_999, b'{"a":' * 199_999, b'["\\"[' * 199_999, b'"' * 999_999])
def test_deep_nesting_of_any_size_is_a_seed_error(value):
    assert reason_of(value).startswith("message: ")


def test_a_message_of_one_megabyte_is_too_large():
    frame = len(b'{"url": "http://a/", "x": ""}')
    assert parse_seed(b'{"url": "http://a/", "x": "%s"}' % (b"x" * (999_999 - frame))).unknown_fields == ("x",)
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


HOSTILE: dict[str, Callable[[int], bytes]] = {  # by size: 16 is as much as fits
    "nested": lambda n: b"[" * (62_000 * n),
    "numbers": lambda n: list_of(b"1", 28_000 * n),
    "empty texts": lambda n: list_of(b'""', 18_000 * n),
    "nested values": lambda n: list_of(b"[" * 27 + b"]" * 27, 1_000 * n),
    "large numbers": lambda n: list_of(b"1e308", 9_000 * n),
    "keys": lambda n: meta_of(b"{" + b",".join(b'"%d":1' % number for number in range(5_600 * n)) + b"}"),
    "digits": lambda n: meta_of(b"9" * (56_000 * n)),
    "digits of a fraction": lambda n: meta_of(b"0." + b"9" * (56_000 * n)),
    "digits of an exponent": lambda n: meta_of(b"1e" + b"9" * (56_000 * n)),
    "halves of characters": lambda n: meta_of(b'"' + rb"\ud83d" * (9_000 * n) + b'"'),
    "quotes": lambda n: b'"' * (62_000 * n),
    "a long url": lambda n: b'{"url": "http://a/' + b"a" * (56_000 * n) + b'"}',
    "values of a header": lambda n: b'{"url": "http://a/", "headers": {"X": [%s]}}' % b",".join([b'""'] * (2_500 * n)),
    "cookies": lambda n: (
        b'{"url": "http://a/", "cookies": [%s]}' % b",".join([b'{"name":"a","value":"b"}'] * (1_000 * n))
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_message_costs_no_more_than_its_length(kind):
    """It is parsed on the intake's thread, which shares the interpreter with the event loop."""
    values = {n: HOSTILE[kind](n) for n in (4, 16)}
    assert len(values[16]) < MAX_MESSAGE_BYTES
    reason_of(values[16])
    assert_grows(lambda n: partial(refused, values[n]), 4)


def refused(value):
    """Smaller ones may be seeds."""
    with suppress(SeedError):
        parse_seed(value)


@pytest.mark.parametrize(
    ("text", "count"),
    [(rb"\"", 400_000), (rb"\\", 400_000), (rb"\u65e5", 150_000), (b",{[", 300_000), ("é".encode(), 9_000)],
)
def test_a_long_text_costs_no_more_than_its_length_and_stays_text(text, count):
    """As does making an object of it for the result."""

    def taken(value):
        seed = parse_seed(value)
        return seed, seed.extra_json

    values = {n: meta_of(b'"' + text * (count * n // 16) + b'"') for n in (4, 16)}
    seed, extra_json = taken(values[16])
    assert len(seed.extra["x"]) >= count
    assert len(extra_json) < 1_000_000
    assert_grows(lambda n: partial(taken, values[n]), 4)
