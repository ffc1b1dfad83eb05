"""URLs: what is refused, what identifies a document, which host and site a URL belongs to."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from w3lib.url import canonicalize_url

from site_spider.errors import SeedError
from site_spider.page.url import MAX_URL_BYTES, canonical_url, check_url, host_of, url_id
from tests.page.urls import NEARLY_URLS, SIMPLE_URLS


@pytest.mark.parametrize(
    ("given_url", "fetched"),
    [
        ("http://example.com/a?b=2&a=1#top", "http://example.com/a?b=2&a=1#top"),
        ("HTTP://example.com/A", "http://example.com/A"),
        ("hTTps://EXAMPLE.com/A", "https://example.com/A"),
        ("http://example.com", "http://example.com"),
        ("http://example.com?q", "http://example.com?q"),
        ("http://example.com:65535/", "http://example.com:65535/"),
        ("http://example.com./", "http://example.com./"),
        ("http://a_b.example.com/", "http://a_b.example.com/"),
        ("http://bücher.example/ü?ü=ü", "http://xn--bcher-kva.example/ü?ü=ü"),
        ("http://BÜCHER.example:81/", "http://xn--bcher-kva.example:81/"),
        ("http://faß.de/", "http://xn--fa-hia.de/"),
        ("http://i❤.ws/", "http://xn--i-7iq.ws/"),
        ("http://ex。com/", "http://ex.com/"),
        ("http://①②⑦.0.0.1/", "http://127.0.0.1/"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/"),
        ("http://[::0:1]:8000/x", "http://[::1]:8000/x"),
        ("http://[2001:DB8::1]", "http://[2001:db8::1]"),
        ("http://example.com/a@b:c\\d[e]", "http://example.com/a@b:c\\d[e]"),
        (
            "http://example.com/" + "a" * (MAX_URL_BYTES - 19),
            "http://example.com/" + "a" * (MAX_URL_BYTES - 19),
        ),
    ],
)
def test_a_url_that_can_be_fetched_passes_with_scheme_and_host_in_one_spelling(given_url, fetched):
    """Path and query stay as given."""
    assert check_url(given_url) == fetched


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (None, "null, but must be a string"),
        (7, "7, but must be a string"),
        (["http://a/"], "a list, but must be a string"),
        ("", "empty"),
        ("  ", "empty"),
        (" http://a/", "white space"),
        ("http://a/\n", "white space"),
        ("http://a/b c", "space; write %20"),
        ("http://a b/", "space"),
        ("http://a/\tb", "control character"),
        ("http://a/\x00", "control character"),
        ("http://a/\x7f", "control character"),
        ("http://a/\x85b", "control character"),
        ("http://example.com/" + "a" * (MAX_URL_BYTES - 18), "longer than 8192 bytes"),
        ("http://a/" + "ü" * 4100, "longer than 8192 bytes"),
        ("example.com/a", "no scheme"),
        ("//example.com/a", "no scheme"),
        ("ftp://a/", "scheme 'ftp' is not allowed; use http or https"),
        ("FILE:///etc/hostname", "scheme 'file'"),
        ("data:text/plain,x", "scheme 'data'"),
        ("javascript:alert(1)", "scheme 'javascript'"),
        ("s3://bucket/key", "scheme 's3'"),
        ("http:", "no host"),
        ("http:/a", "no host"),
        ("http:a/b", "no host"),
        ("http://", "no host"),
        ("http:///path", "no host"),
        ("http://?q", "no host"),
        ("http://:80/", "no host"),
        ("http://a:0/", "port '0'"),
        ("http://a:65536/", "port '65536'"),
        ("http://a:99999999/", "port '99999999'"),
        ("http://a:/", "port ''"),
        ("http://a:8o/", "port '8o'"),
        ("http://a:-1/", "port '-1'"),
        ("http://a:٣/", "port '\\u0663'"),
        ("http://a:1:2/", "port '1:2'"),
        ("http://user:secret@a/", "Authorization header"),
        ("http://user@a/", "Authorization header"),
        ("http://a\\@b/", "backslash"),
        ("http://a\\b/", "backslash"),
        ("http://[::1/", "host part '[::1'"),
        ("http://::1/", "no host"),
        ("http://[::1]x/", "not valid"),
        ("http://[]/", "not an IPv6 address"),
        ("http://[g::1]/", "not an IPv6 address"),
        ("http://[127.0.0.1]/", "not an IPv6 address"),
        ("http://[fe80::1%25eth0]/", "network interface"),
        ("http://a..b/", "not a valid name"),
        ("http://.a/", "not a valid name"),
        ("http://./", "not a valid name"),
        ("http://" + "a" * 64 + ".com/", "not a valid name"),
        ("http://" + "a." * 127 + "com/", "longer than 253 characters"),
        ("http://a%2eb/", "not a valid name"),
        ("http://a!b/", "not a valid name"),
        ("http://ℂ.℀.com/", "not a valid"),
        ("http://ü..com/", "not a valid international name"),
        ("http://" + "ü" * 70 + ".com/", "not a valid international name"),
        ("http://\u00ad.com/", "not a valid international name"),
        ("http://a/\ud800", "lone surrogate"),
        ("http://a\ud800/", "lone surrogate"),
    ],
)
def test_a_url_that_cannot_be_fetched_is_refused_with_the_reason(url, why):
    """The reason names the field and what is wrong, in one line of printable ASCII."""
    with pytest.raises(SeedError) as caught:
        check_url(url)
    reason = caught.value.reason
    assert reason.startswith("url: ")
    assert why in reason
    assert reason.isascii()
    assert reason.isprintable()
    assert len(reason) <= 300


def test_a_password_in_a_url_does_not_reach_the_reason():
    """Reasons travel on, into headers of dead letters and into logs."""
    with pytest.raises(SeedError) as caught:
        check_url("http://user:secret@example.com/")
    assert "secret" not in caught.value.reason


@given(NEARLY_URLS | st.text())
def test_whatever_passes_the_check_is_its_own_result_and_has_host_and_id(url):
    """check_url raises nothing but SeedError, and what it returns is safe for all that follows."""
    try:
        checked = check_url(url)
    except SeedError:
        return
    assert check_url(checked) == checked
    assert host_of(checked)
    assert host_of(checked) == host_of(url)
    assert url_id(checked) == url_id(url)
    assert canonical_url(canonical_url(checked)).startswith("http")


@given(NEARLY_URLS | st.text() | st.integers() | st.binary())
def test_host_of_never_raises(url):
    """It is asked of links in pages, which hold anything."""
    assert isinstance(host_of(url), str)


@given(SIMPLE_URLS)
def test_the_short_way_to_the_canonical_url_leads_where_w3lib_does(url):
    """Scrapy's fingerprints are made of w3lib's canonical URL, and ours must not differ from them."""
    assert canonical_url(url) == canonicalize_url(url)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("http://a.b/?b=2&a=1", "http://a.b/?a=1&b=2"),
        ("http://a.b", "http://a.b/#fragment"),
        ("http://a.b/%7ex", "http://a.b/~x"),
        ("http://a.b/ü", "http://a.b/%C3%BC"),
        ("http://A.b/x/../y", "http://a.b/y"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://faß.de/", "http://xn--fa-hia.de/"),
    ],
)
def test_equal_urls_have_the_same_id(left, right):
    """The id is that of the canonical URL."""
    assert canonical_url(left) == canonical_url(right)
    assert url_id(left) == url_id(right)


def test_the_id_of_a_url_never_changes():
    """Documents written by earlier releases must be found again."""
    assert url_id("http://example.com/?b=2&a=1#x") == "d7443938ea62352eeb1c21b7d2e7e702f79a47bc"


def test_different_urls_have_different_ids():
    """Scheme, port, path and query all count."""
    urls = [
        "http://a/",
        "https://a/",
        "http://a:81/",
        "http://a/b",
        "http://a/?b",
        "http://a/?b=1",
        "http://a/B",
    ]
    assert len({url_id(url) for url in urls}) == len(urls)


def test_a_canonical_url_of_what_is_no_url_is_a_value_error():
    """Links are checked before; this is for those that forgot."""
    with pytest.raises(ValueError, match="scheme"):
        canonical_url("mailto:ü")


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://Example.COM:80/a", "example.com"),
        ("http://example.com.", "example.com"),
        ("http://user:pass@example.com/", "example.com"),
        ("http://bücher.example/", "xn--bcher-kva.example"),
        ("http://[::0:1]:80/", "::1"),
        ("http://127.0.0.1/", "127.0.0.1"),
        ("http://a:99999/", "a"),
        ("ftp://a/", "a"),
        ("", ""),
        ("a", ""),
        ("mailto:x@y", ""),
        ("http://", ""),
        ("http://[::1", ""),
        ("http://[x]/", ""),
        ("http://evil.com\\@good.com/", ""),
        ("http://\ud800/", ""),
        (None, ""),
    ],
)
def test_the_host_of_a_url_is_in_its_one_spelling(url, host):
    """Empty when there is none, or none that could be asked."""
    assert host_of(url) == host


def test_a_label_too_long_to_be_spelled_costs_no_more_than_one_that_can_be() -> None:
    """Spelling takes quadratic time: 26 ms for the longest host, before it was refused."""

    def seconds(characters: int) -> float:
        host = "".join(chr(0x4E00 + number) for number in range(characters))
        began = time.thread_time()
        host_of(f"http://{host}/")
        return time.thread_time() - began

    seconds(10)
    assert min(seconds(253) for _ in range(5)) < 4 * min(seconds(60) for _ in range(5))


def test_labels_that_shrink_when_they_are_mapped_are_spelled() -> None:
    shrinks = "a\u0308" * 40 + "\u00ad" * 20
    assert host_of(f"http://{shrinks}.test/") == host_of(f"http://{'ä' * 40}.test/") != ""
