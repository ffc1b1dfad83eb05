"""What a message says of a request that another process sent on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.errors import SeedError
from site_spider.seed import spilled as signature
from site_spider.seed.fields import MAX_PRIORITY
from site_spider.seed.seed import parse_seed
from site_spider.seed.spilled import HOME, HOPS, KEY, MOST_HOPS, PLACE, ListPlace, Spilled

words = st.lists(st.text("aé 5()", max_size=5), max_size=3).map(tuple)
urls = st.lists(st.sampled_from(["http://h.test/a", "https://[::1]:8080/?b=c"]), max_size=3).map(tuple)
numbers = st.integers(0, 1_000)
spilled = st.builds(
    Spilled,
    url=st.sampled_from(["", "http://h.test/a"]),
    method=st.sampled_from(["GET", "POST"]),
    anchor_host=st.sampled_from(["", "h.test"]),
    home=st.sampled_from(["", "h.test"]),
    retry_times=numbers,
    retry_reasons=words,
    redirect_times=numbers,
    redirect_ttl=st.none() | numbers,
    redirect_urls=urls,
    redirect_reasons=st.lists(st.just("meta refresh") | st.integers(100, 999), max_size=3).map(tuple),
    hops=st.integers(0, MOST_HOPS),
    place=st.builds(ListPlace, numbers, numbers, numbers),
    unraised_priority=st.none() | st.integers(-MAX_PRIORITY, MAX_PRIORITY),
)


@given(spilled)
def test_it_comes_out_as_it_went_in(said: Spilled) -> None:
    beside = {HOPS: said.hops, PLACE: said.place, HOME: said.home}
    message = json.dumps({"url": "http://h.test/b", "meta": {KEY: said.fields()}, **beside}).encode()
    seed = parse_seed(message)
    assert seed.spilled == replace(said, scope_host=said.anchor_host)
    assert seed.extra == {}


def test_a_seed_of_a_producer_has_none() -> None:
    """Nor needs it a signature. An empty object says that a process sent a link, nothing that nobody did."""
    for keys in ((), (NEW,)):
        assert parse_seed(b'{"url": "http://h.test/"}', keys=keys).spilled is None
    assert parse_seed(b'{"url": "http://h.test/", "meta": {"site_moved": null}}').spilled is None
    link = parse_seed(b'{"url": "http://h.test/", "meta": {"site_moved": {}}}').spilled
    assert link is not None
    assert link.is_link


WRONG = {
    "anchor_host": [1, "h" * 300, "H.test", "h.test:80", "h.test/path", "u@h.test", "h.test\x1b[31m", ".", "[::1]"],
    "hops": [-1, MOST_HOPS + 1],
    "method": ["CONNECT"],
    "redirect_reasons": [[0], [1000], ["x\x00"], [True], [None]],
    "redirect_ttl": ["many"],
    "redirect_urls": [[1], "http://h/", ["file:///etc/passwd"], ["http://h/\x1b"], ["http://h/" + "a" * 10_000]],
    "retry_reasons": [["\x1b]0;x\x07"], ["\u202e"], ["a\nb"], ["x" * 201], [1], ["x"] * 201],
    "retry_times": [1_001, 0.5, 10**300, -1, True],
    "unraised_priority": ["high", MAX_PRIORITY + 1],
    "url": [1, "file:///etc/hostname", "http://h.test/\x9b"],
    # no fields
    **{"is_proven": [True], "proxy": ["http://p.test"], "scope_host": ["h.test"]},
}


@pytest.mark.parametrize("value", [1, [], *({name: wrong} for name, some in WRONG.items() for wrong in some)])
def test_what_no_process_writes_is_refused(value: Any) -> None:
    with pytest.raises(SeedError):
        parse_seed(json.dumps({"url": "http://h.test/", "meta": {KEY: value}}).encode())


@pytest.mark.parametrize("place", [1, {}, [], [2, 0], [2, 0, -1], [2, 0, True], [2, 0, 2**53 + 1]])
def test_a_place_in_a_list_that_no_process_writes_is_refused(place: Any) -> None:
    with pytest.raises(SeedError, match=PLACE):
        parse_seed(json.dumps({"url": "http://h.test/", "meta": {KEY: {}}, PLACE: place}).encode())


def message(url: str = "http://h.test/b", **meta: Any) -> dict[str, Any]:
    return {"url": url, "meta": {KEY: {"anchor_host": "h.test"}, **meta}}


@pytest.mark.parametrize(
    ("anchor_host", "believed"),
    [("h.test", "h.test"), ("www.h.test", "www.h.test"), ("", ""), ("other.test", "."), ("test", ".")],
)
def test_an_anchor_host_is_believed_within_the_site_of_the_url(anchor_host: str, believed: str) -> None:
    """Of what anybody can write; links to no host at all are followed from elsewhere."""
    spilled = parse_seed(json.dumps(message(**{KEY: {"anchor_host": anchor_host}})).encode()).spilled
    assert spilled is not None
    assert (spilled.anchor_host, spilled.scope_host, spilled.is_proven) == (anchor_host, believed, False)


OLD, NEW = b"an old key of some length", b"a new key of some length"


def test_with_a_key_what_is_signed_is_believed() -> None:
    """By whichever of the keys, so that they can be exchanged while processes run."""
    for key in (OLD, NEW):
        said = signature.signed(message(**{KEY: {"anchor_host": "other.test"}}), key)
        spilled = parse_seed(json.dumps(said).encode(), keys=(NEW, OLD)).spilled
        assert spilled is not None
        assert (spilled.scope_host, spilled.is_proven) == ("other.test", True)


def test_a_signature_means_what_was_signed_however_it_is_written() -> None:
    said = signature.signed(message(colour={"b": 1.5, "a": "größer 😀"}), NEW)
    assert parse_seed(json.dumps(said, indent=1, sort_keys=True).encode(), keys=(NEW,)).spilled


SIGNED = signature.signed(message(), NEW)


@pytest.mark.parametrize(
    "forged",
    [
        message(),
        signature.signed(message(), b"another key, not ours"),
        {**SIGNED, "url": "http://h.test/c"},
        {**SIGNED, "priority": 5},
        {**SIGNED, "meta": {**SIGNED["meta"], "url_id": "1"}},
        {**SIGNED, "meta": {**SIGNED["meta"], "colour": "red"}},
        {**SIGNED, "meta": {**SIGNED["meta"], KEY: {"anchor_host": "i.test"}}},
        {**SIGNED, "meta": {**SIGNED["meta"], signature.SIGNATURE_KEY: SIGNED["meta"][signature.SIGNATURE_KEY][:-1]}},
        *(message(**{signature.SIGNATURE_KEY: bad}) for bad in (None, "", 1, [], "é", "0" * 64)),
    ],
)
def test_with_a_key_what_is_not_signed_is_refused(forged: dict[str, Any]) -> None:
    with pytest.raises(SeedError) as caught:
        parse_seed(json.dumps(forged).encode(), keys=(NEW, OLD))
    assert caught.value.reason.startswith("meta.site_moved: not signed with SITE_SPILL_KEY")
