"""Which addresses are public."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.download.address import is_address, is_metadata_name, is_public

# Of the registries, in the order of their lines: what is not globally reachable, or not said to be.
REFUSED_IPV4 = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
    "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
]  # fmt: skip
OPEN_IPV4 = ["192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24"]
REFUSED_IPV6 = [
    "::/128", "::1/128", "100::/64", "100:0:0:1::/64", "2001:1::/32", "2001:2::/48", "2001:10::/28",
    "2001:20::/28", "2001:30::/28", "2001:5::/32", "2001:100::/24", "2001:db8::/32", "3fff::/20", "5f00::/16",
    "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8", "4000::/3", "1000::/4",
]  # fmt: skip
OPEN_IPV6 = ["2001:200::/23", "2001:3::/32", "2001:4:112::/48", "2620:4f:8000::/48", "2400::/12", "2a00::/12"]
METADATA = [
    "169.254.169.254", "169.254.170.2", "169.254.0.23", "168.63.129.16", "100.100.100.200", "192.0.0.192",
    "fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42", "fe80::a9fe:a9fe",
]  # fmt: skip


@pytest.mark.parametrize(
    "address",
    [
        "fe80::1%eth0", "2606:2800:220:1::1%eth0", "8.8.8.8%eth0", "localhost", "", "2130706433", "127.1",
        "0x7f000001", "0177.0.0.1", "8.8.8.8 ", "8.8.8.8\n", "08.8.8.8", "8.8.8", "[2606:2800::1]",
        "①②⑦.0.0.1", "::ffff:8.8.8",
        *METADATA,
    ],
)  # fmt: skip
def test_what_is_not_the_usual_spelling_of_a_public_address_is_not_public(address: str) -> None:
    assert not is_public(address)


def ends(block: str) -> tuple[str, str]:
    network = ip_network(block)
    return str(network[0]), str(network[-1])


@pytest.mark.parametrize("block", REFUSED_IPV4 + REFUSED_IPV6 + OPEN_IPV4 + OPEN_IPV6)
def test_a_block_is_refused_or_open_to_its_ends(block: str) -> None:
    """Open are those that the registries call globally reachable, and that are assigned to networks."""
    network = ip_network(block)
    found = [is_public(address) for address in (*ends(block), str(network[network.num_addresses // 2]))]
    assert found == [block in OPEN_IPV4 + OPEN_IPV6] * 3


def test_the_neighbours_of_a_refused_block_are_public() -> None:
    networks = [ip_network(block) for block in REFUSED_IPV4]
    numbers = {number for one in networks for number in (int(one[0]) - 1, int(one[-1]) + 1)}
    beside = [IPv4Address(number) for number in numbers if 0 < number < 2**32]
    public = [str(address) for address in beside if not any(address in one for one in networks)]
    public += ["2000::", "2001:200::", "2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db9::", "2003::", "3ffe::1"]
    public += ["3fff:1000::", "2001:4860:4860::8888", "2606:4700:4700::1111"]
    assert len(public) == 37
    assert [address for address in public if not is_public(address)] == []


def v4(address: str) -> int:
    return int(IPv4Address(address))


def after_prefix(bits: int, address: str) -> str:
    """As the table in section 2.2 of RFC 6052 draws it: octet 8 is skipped."""
    octets = list(IPv6Address("64:ff9b:1::").packed[: bits // 8])
    for octet in IPv4Address(address).packed:
        if len(octets) == 8:
            octets.append(0)
        octets.append(octet)
    return str(IPv6Address(bytes(octets).ljust(16, b"\0")))


def embedding(address: str) -> dict[str, str]:
    """The address in every form that an IPv6 address can embed it in."""
    number, public = v4(address), v4("8.8.8.8")
    high, low = f"{number >> 16:x}", f"{number & 0xFFFF:x}"
    return {
        "compatible": f"::{high}:{low}",
        "mapped": f"::ffff:{high}:{low}",
        "translated": f"::ffff:0:{high}:{low}",
        "NAT64": f"64:ff9b::{high}:{low}",
        "local NAT64 /48": after_prefix(48, address),
        "local NAT64 /56": after_prefix(56, address),
        "local NAT64 /64": after_prefix(64, address),
        "local NAT64 /96": f"64:ff9b:1::{high}:{low}",
        "6to4": f"2002:{high}:{low}::1",
        "Teredo server": str(IPv6Address(0x20010000 << 96 | number << 64 | ~public & 0xFFFFFFFF)),
        "Teredo client": str(IPv6Address(0x20010000 << 96 | public << 64 | ~number & 0xFFFFFFFF)),
        "ISATAP": f"2606:4700::5efe:{high}:{low}",
        "ISATAP, universal": f"2606:4700::200:5efe:{high}:{low}",
        "ISATAP, of a group": f"2606:4700::100:5efe:{high}:{low}",
        "ISATAP in 6to4": f"2002:808:808::5efe:{high}:{low}",
    }


@pytest.mark.parametrize("form", embedding("8.8.8.8"))
def test_an_embedded_address_is_what_counts(form: str) -> None:
    """Refused for the first and last address of every refused block, public for others."""
    refused = [address for block in REFUSED_IPV4 for address in ends(block)] + METADATA[:6]
    assert [address for address in refused if is_public(embedding(address)[form])] == []
    others = ("8.8.8.8", "93.184.216.34", "1.1.1.1")
    assert [address for address in others if not is_public(embedding(address)[form])] == []


@pytest.mark.parametrize(
    "address",
    [
        "64:ff9b:1:7f00:0:100:808:808",  # 127.0.0.1 after 48 bits, 8.8.8.8 after 96
        "64:ff9b:1:a9fe:a9:fe00:808:808",  # 169.254.169.254
        "64:ff9b:1::", "64:ff9b:1:ffff::", "64:ff9b:2::808:808", "64:ff9a::808:808",
        "fe80::5efe:808:808", "fd00::5efe:808:808", "3fff::5efe:808:808",  # the place itself is private
        "0:0:0:0:fffe:0:808:808", "::1:0:808:808",
    ],
)  # fmt: skip
def test_no_reading_of_an_address_hides_another(address: str) -> None:
    """Every place that it may lead to has to be public."""
    assert not is_public(address)


@given(st.one_of(st.text(), st.integers(0, 2**128 - 1).map(lambda n: str(IPv6Address(n))), st.ip_addresses().map(str)))
def test_any_text_is_judged(text: str) -> None:
    """Nothing raises; nothing is public that the library of Python calls neither an address nor global."""
    if is_public(text):
        assert is_address(text)
        assert not ip_address(text).is_loopback


@pytest.mark.parametrize("name", ["metadata.google.internal", "METADATA.google.internal.", "metadata", "instance-data"])
def test_names_of_metadata_are_known(name: str) -> None:
    assert is_metadata_name(name)
    assert not is_metadata_name(f"www.{name.lower().rstrip('.')}.example")
