"""URLs: what is refused, what identifies a document, which host and site a URL belongs to."""

from __future__ import annotations

import socket
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import fingerprint
from w3lib.url import canonicalize_url

from site_spider.errors import SeedError
from site_spider.page.url import (
    MAX_URL_BYTES,
    canonical_url,
    check_url,
    form_of,
    host_of,
    in_scope,
    is_safe,
    page_fingerprint,
    same_scope,
    site_of,
    url_id,
)
from tests.page.test_links import urls

PIECES = [
    "http://", "HTTPS://", "a.b", "h", "ü", "xn--", ":", "80", "0", "@", "/", "//", "..", ".", "?", "#",
    "&", "=", "%", "%C3", ";", "\\", "[", "]", "::1", "~", "\u3002", "ß", "|", "\ud800", "\x00", " ",
    "x" * 64,
]  # fmt: skip
NEARLY_URLS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
SIMPLE_URLS = st.from_regex(r"https?://(a|b\.c|h:81)/[aB.~_/-]{0,8}(\?[aB1.&=]{0,12})?", fullmatch=True)

AS_GIVEN = (
    *("http://example.com/a?b=2&a=1#top", "http://example.com", "http://example.com?q", "http://example.com:65535/"),
    *("http://example.com./", "http://a_b.example.com/", "http://127.0.0.1:8000/", "http://example.com/a@b:c\\d[e]"),
    "http://example.com/" + "a" * (MAX_URL_BYTES - 19),
)


@pytest.mark.parametrize(
    ("given_url", "fetched"),
    [
        *((url, url) for url in AS_GIVEN),
        ("HTTP://example.com/A", "http://example.com/A"),
        ("hTTps://EXAMPLE.com/A", "https://example.com/A"),
        ("http://bücher.example/ü?ü=ü", "http://xn--bcher-kva.example/ü?ü=ü"),
        ("http://BÜCHER.example:81/", "http://xn--bcher-kva.example:81/"),
        ("http://faß.de/", "http://xn--fa-hia.de/"),
        ("http://i❤.ws/", "http://xn--i-7iq.ws/"),
        ("http://ex。com/", "http://ex.com/"),
        ("http://①②⑦.0.0.1/", "http://127.0.0.1/"),
        ("http://[::0:1]:8000/x", "http://[::1]:8000/x"),
        ("http://[2001:DB8::1]", "http://[2001:db8::1]"),
    ],
)
def test_a_url_that_can_be_fetched_passes_with_scheme_and_host_in_one_spelling(given_url, fetched):
    assert check_url(given_url) == fetched


REFUSED = {  # by what the reason says
    "null, but must be a string": [None],
    "7, but must be a string": [7],
    "a list, but must be a string": [["http://a/"]],
    "empty": ["", "  "],
    "white space": [" http://a/", "http://a/\n"],
    "space; write %20": ["http://a/b c"],
    "space": ["http://a b/"],
    "control character": ["http://a/\tb", "http://a/\x00", "http://a/\x7f", "http://a/\x85b"],
    "longer than 8192 bytes": ["http://example.com/" + "a" * (MAX_URL_BYTES - 18), "http://a/" + "ü" * 4100],
    "no scheme": ["example.com/a", "//example.com/a"],
    "scheme 'ftp' is not allowed; use http or https": ["ftp://a/"],
    "scheme 'file'": ["FILE:///etc/hostname"],
    "scheme 'data'": ["data:text/plain,x"],
    "scheme 'javascript'": ["javascript:alert(1)"],
    "scheme 's3'": ["s3://bucket/key"],
    "no host": ["http:", "http:/a", "http:a/b", "http://", "http:///path", "http://?q", "http://:80/", "http://::1/"],
    "port '0'": ["http://a:0/"],
    "port '65536'": ["http://a:65536/"],
    "port '99999999'": ["http://a:99999999/"],
    "port ''": ["http://a:/"],
    "port '8o'": ["http://a:8o/"],
    "port '-1'": ["http://a:-1/"],
    "port '\\u0663'": ["http://a:٣/"],
    "port '1:2'": ["http://a:1:2/"],
    "Authorization header": ["http://user:secret@a/", "http://user@a/"],
    "backslash": ["http://a\\@b/", "http://a\\b/"],
    "host part '[::1'": ["http://[::1/"],
    "not valid": ["http://[::1]x/"],
    "not an IPv6 address": ["http://[]/", "http://[g::1]/", "http://[127.0.0.1]/"],
    "network interface": ["http://[fe80::1%25eth0]/"],
    "not a valid name": ["http://a..b/", "http://.a/", "http://./", "http://a%2eb/", "http://a!b/"],
    "longer than 253 characters": ["http://" + "a." * 127 + "com/"],
    "not a valid": ["http://ℂ.℀.com/", "http://" + "a" * 64 + ".com/"],
    "not a valid international name": ["http://ü..com/", "http://" + "ü" * 70 + ".com/", "http://\u00ad.com/"],
    "lone surrogate": ["http://a/\ud800", "http://a\ud800/"],
}


@pytest.mark.parametrize(("url", "why"), [(each, why) for why, some in REFUSED.items() for each in some])
def test_a_url_that_cannot_be_fetched_is_refused_with_the_reason(url, why):
    with pytest.raises(SeedError) as caught:
        check_url(url)
    reason = caught.value.reason
    assert reason.startswith("url: ")
    assert why in reason
    assert reason.isascii()
    assert reason.isprintable()
    assert len(reason) <= 300
    assert "secret" not in reason


@given(NEARLY_URLS | st.text())
def test_whatever_passes_the_check_is_its_own_result_and_has_host_and_id(url):
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
    assert canonical_url(left) == canonical_url(right)
    assert url_id(left) == url_id(right)


def test_the_id_of_a_url_never_changes():
    """Documents written by earlier releases must be found again."""
    assert url_id("http://example.com/?b=2&a=1#x") == "d7443938ea62352eeb1c21b7d2e7e702f79a47bc"


def test_different_urls_have_different_ids():
    urls = ["http://a/", "https://a/", "http://a:81/", "http://a/b", "http://a/?b", "http://a/?b=1", "http://a/B"]
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
        *((none, "") for none in ("", "a", "mailto:x@y", "http://", "http://[::1", "http://[x]/", None)),
        *((none, "") for none in ("http://evil.com\\@good.com/", "http://\ud800/")),
    ],
)
def test_the_host_of_a_url_is_in_its_one_spelling(url, host):
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


# --- URLs in their usual form

ODD = r"https?://[a-z0-9._~-]{0,9}(:[0-9]{0,5})?[/?#]?[A-Za-z0-9/._~%&=?# \t'\[\]|{}<>\"^`\\;,+é-]{0,20}"
FORM = r"https?://[a-z0-9._-]{1,9}(:[1-9][0-9]{0,4})?/[A-Za-z0-9/_.~-]{0,9}(\?[A-Za-z0-9_.~&=-]{1,9})?"


@given(st.from_regex(FORM, fullmatch=True) | st.from_regex(ODD, fullmatch=True))
def test_scrapy_leaves_what_is_safe_as_it_is(url: str) -> None:
    if is_safe(url):
        assert Request(url).url == url


@pytest.mark.parametrize("url", ["http://h.test/", "https://h.test:8443/a/b.html?c=d&e=f~g", "http://127.0.0.1:1/-"])
def test_most_urls_are_safe(url: str) -> None:
    assert is_safe(url)


@pytest.mark.parametrize(
    "url",
    [
        *("http://h.test", "http://H.test/", "HTTP://h.test/", "http://h.test/ ", "http://h.test/\n"),
        *("http://h.test/a b", "http://h.test/é", "http://h.test/?a[]=b", "http://h.test/#a", "http://u@h.test/"),
        *("http://h.test:080/", "http://[::1]/", "http://h.test/?", "http://h..test/", "http://h.test/%zz"),
    ],
)
def test_what_scrapy_may_change_or_is_rare_is_not(url: str) -> None:
    assert not is_safe(url)


# --- What links are compared as

HOST = "http://h.test"


@pytest.mark.parametrize(
    ("written", "compared"),
    [
        ("/a", "/a"),
        ("/a?b=1", "/a?b=1"),
        ("/a?utm_source=x", "/a"),
        ("/a?z=1&utm_Medium=x&b=2&gclid=3&fbclid=4", "/a?b=2&z=1"),
        ("/a?utm_source", "/a"),
        ("/a;jsessionid=ABC?b=1", "/a?b=1"),
        ("/a;JSESSIONID=1;v=2/b", "/a;v=2/b"),
        ("/a?PHPSESSID=1&b=", "/a?b="),
        ("/(S(0123456789abcdefghijklmn))/a.aspx", "/a.aspx"),
        ("/d/index.html", "/d/"),
        ("/d/index.php?b=1", "/d/?b=1"),
        ("/index.html/x", "/index.html/x"),
        ("/a?session_id=7&sid=8&id=9&ref=x", "/a?id=9&ref=x&session_id=7&sid=8"),  # they may tell pages apart
        ("/a?b=utm_source", "/a?b=utm_source"),
    ],
)
def test_what_tells_no_pages_apart_is_left_out(written: str, compared: str) -> None:
    form = form_of(["tracking"])
    assert form is not None
    found = form.of(canonical_url(HOST + written))
    assert found == HOST + compared
    assert form.of(found) == found


def test_names_of_ones_own_take_the_place_of_those_of_trackers() -> None:
    form = form_of(["Sort", "x_*"])
    assert form is not None
    assert form.of(f"{HOST}/a?b=1&sort=2&utm_source=3&x_1=4") == f"{HOST}/a?b=1&utm_source=3"
    both = form_of(["tracking", "sort"])
    assert both is not None
    assert both.of(f"{HOST}/a?b=1&sort=2&utm_source=3") == f"{HOST}/a?b=1"
    assert form_of(["none"]) is form_of(["None"]) is form_of([]) is None
    assert form_of(["b", "a"]) is form_of(["a", "b"])


@pytest.mark.parametrize("names", [["none", "a"], [""], ["*"], ["a*b"], ["ä"], ["x" * 101], ["a"] * 201])
def test_what_is_no_list_of_names_is_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        form_of(names)


def test_fingerprints_of_urls_without_such_parameters_are_as_before() -> None:
    form = form_of(["tracking"])
    for path in ("/", "/a", "/a?b=1&a=2", "/d/index.html?x", "/a;b=c", "/%7Ea?q=%20"):
        url = canonical_url(HOST + path)
        same = form is not None and form.of(url) == url
        assert (page_fingerprint(HOST + path, None, form) == page_fingerprint(HOST + path)) is same
    assert page_fingerprint(f"{HOST}/a?utm_x=1", "t", form) == page_fingerprint(f"{HOST}/a", "t")


def test_long_queries_take_linear_time() -> None:
    form = form_of(["tracking"])
    assert form is not None
    assert form.of(f"{HOST}/?" + "utm_a=1&" * 1_000 + "b") == f"{HOST}/?b"
    assert form.of(HOST + ";sid=1" * 1_300) == HOST
    assert form.of(HOST + "/(S(" * 2_000) == HOST + "/(S(" * 2_000


# --- Which hosts are one site, and which links stay on the site of a seed


@pytest.mark.parametrize(
    ("host", "site"),
    [
        *((own, own) for own in ("example.com", "co.uk", "com", "alice.github.io", "localhost", "")),
        *((own, own) for own in ("127.0.0.1", "127.1", "0x7f.0x1", "::1", "2001:db8::1.2.3.4")),
        ("www.example.com", "example.com"),
        ("a.b.example.co.uk", "example.co.uk"),
        ("www.xn--85x722f.com.cn", "xn--85x722f.com.cn"),
        ("a.b.xn--p1ai", "b.xn--p1ai"),
        ("a.b.internal", "b.internal"),
    ],
)
def test_the_site_of_a_host_is_its_registrable_domain(host, site):
    """By the public suffix list, private suffixes included."""
    assert site_of(host) == site


def test_the_public_suffix_list_is_read_without_network(monkeypatch):
    from site_spider.page import url as module

    def refuse(*args, **kwargs):
        raise AssertionError("network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    module._suffixes.cache_clear()
    site_of.cache_clear()
    assert site_of("x.example.co.uk") == "example.co.uk"


@pytest.mark.parametrize(
    ("scope", "host", "same"),
    [
        ("host", "www.example.com", True),
        ("host", "example.com", False),
        ("host", "", False),
        ("domain", "www.example.com", True),
        ("domain", "shop.example.com", True),
        ("domain", "example.org", False),
        ("domain", "notexample.com", False),
        ("domain", "", False),
        ("any", "example.org", True),
    ],
)
def test_a_scope_tells_which_hosts_belong_to_a_seed(scope, host, same):
    assert same_scope(scope, "www.example.com", host) is same


def test_an_unknown_scope_is_a_value_error():
    with pytest.raises(ValueError, match="scope is 'all', but must be one of: host, domain, any"):
        same_scope("all", "a", "a")


@given(
    st.lists(NEARLY_URLS | SIMPLE_URLS), st.sampled_from(["host", "domain", "any"]), st.sampled_from(["a", "b.c", ""])
)
def test_many_urls_are_looked_at_as_one_by_one(urls, scope, seed_host):
    expected = [url for url in urls if same_scope(scope, seed_host, host_of(url))]
    assert in_scope(scope, seed_host, urls) == expected


# --- The short way to a fingerprint

HREFS = st.text("ab./?=&%+,:;@!$*()-_~2eE#'\"\\\\[]|é中 ", min_size=1, max_size=20)


@given(HREFS, st.sampled_from(["http://a.b/c/d", "https://x.test:18080/", "http://[::1]:1/", "http://h:65535"]))
@example("?b=2&a=1&a=0", "http://a.b/")
@example("a%2fb%C3%a9", "http://a.b/")
@example("http://other.test:80/x;y=1,2", "http://a.b/")
def test_it_is_the_fingerprint_that_scrapy_gives_a_plain_request(href: str, base: str) -> None:
    markup = f"<a href='{href}'><a href=\"{href}\">"
    for url in urls(markup, base):
        assert page_fingerprint(url) == fingerprint(Request(url))


@given(st.from_regex(r"https?://(a|b\.c|h:81|h:60000)/[aB.~_/-]{0,8}(\?[aB1.&=%]{0,12})?(#a)?", fullmatch=True))
def test_it_is_so_for_urls_of_seeds_too(url: str) -> None:
    assert page_fingerprint(Request(url).url) == fingerprint(Request(url))
