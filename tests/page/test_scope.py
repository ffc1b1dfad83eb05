"""Which hosts are one site, and which links stay on the site of a seed."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.page.url import host_of, in_scope, same_scope, site_of
from tests.page.urls import NEARLY_URLS, SIMPLE_URLS


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("www.example.com", "example.com"),
        ("example.com", "example.com"),
        ("a.b.example.co.uk", "example.co.uk"),
        ("co.uk", "co.uk"),
        ("com", "com"),
        ("alice.github.io", "alice.github.io"),
        ("www.xn--85x722f.com.cn", "xn--85x722f.com.cn"),
        ("a.b.xn--p1ai", "b.xn--p1ai"),
        ("localhost", "localhost"),
        ("a.b.internal", "b.internal"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.1", "127.1"),
        ("0x7f.0x1", "0x7f.0x1"),
        ("::1", "::1"),
        ("2001:db8::1.2.3.4", "2001:db8::1.2.3.4"),
        ("", ""),
    ],
)
def test_the_site_of_a_host_is_its_registrable_domain(host, site):
    """By the public suffix list, private suffixes included."""
    assert site_of(host) == site


def test_the_public_suffix_list_is_read_without_network(monkeypatch):
    """The list that comes with tldextract is enough."""
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
    """host: that very one; domain: the same site; any: all."""
    assert same_scope(scope, "www.example.com", host) is same


def test_an_unknown_scope_is_a_value_error():
    """A misspelt setting must not mean any."""
    with pytest.raises(ValueError, match="scope is 'all', but must be one of: host, domain, any"):
        same_scope("all", "a", "a")


@given(
    st.lists(NEARLY_URLS | SIMPLE_URLS),
    st.sampled_from(["host", "domain", "any"]),
    st.sampled_from(["a", "b.c", ""]),
)
def test_many_urls_are_looked_at_as_one_by_one(urls, scope, seed_host):
    """That each host is looked at once changes nothing."""
    expected = [url for url in urls if same_scope(scope, seed_host, host_of(url))]
    assert in_scope(scope, seed_host, urls) == expected
