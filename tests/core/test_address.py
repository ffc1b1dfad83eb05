"""Which addresses are public."""

from __future__ import annotations

import pytest

from site_spider.core.address import is_public


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0",
        "100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1",
        "::ffff:127.0.0.1", "64:ff9b::7f00:1", "::127.0.0.1", "2002:7f00:1::", "localhost", "", "2130706433",
    ],
)  # fmt: skip
def test_an_address_that_is_not_globally_reachable_is_not_public(address: str) -> None:
    """Loopback, private, link-local, shared, multicast, and IPv4 addresses wrapped in IPv6."""
    assert not is_public(address)


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_an_ordinary_address_is_public(address: str) -> None:
    """Also an IPv4 address wrapped in IPv6, when it is public itself."""
    assert is_public(address)
