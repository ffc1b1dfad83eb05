"""Messages for the tests of seeds, and how their reasons must look."""

import json

import pytest

from site_spider.errors import SeedError
from site_spider.seed.seed import parse_seed

URL = "http://example.com/a"


def assert_plain(reason):
    """One short line of printable ASCII, whatever the message held."""
    assert reason.isascii()
    assert reason.isprintable()
    assert len(reason) <= 300


def message(**fields):
    """A message with a valid URL and these fields."""
    return json.dumps({"url": URL, **fields}).encode()


def parsed(**fields):
    """The seed of that message."""
    return parse_seed(message(**fields))


def reason_of(value):
    """Why this message is refused."""
    with pytest.raises(SeedError) as caught:
        parse_seed(value)
    assert_plain(caught.value.reason)
    return caught.value.reason
