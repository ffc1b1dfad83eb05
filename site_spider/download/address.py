"""Which addresses a crawl may reach: globally reachable unicast, or any when private hosts are allowed.

The tables are ours because `ipaddress.is_global` changes with the version of Python and lags behind
the registries. They follow IANA's IPv4 and IPv6 Special-Purpose Address Registries as of
2025-10-09: of the blocks that hold an address, the smallest decides. They differ in three points:

- Refused are services of the nearest router or relay (in 192.0.0.0/24 and 2001:1::/32), and
  identifiers that are not routed (2001:20::/28, 2001:30::/28), for no site has such an address.
- In IPv6 only 2000::/3 is public, the one block that IANA assigns unicast addresses from.
- An address that embeds IPv4 addresses is public only if all of them are: what translates, relays
  or tunnels its packets may stand beside us. A translator whose prefix is its network's own
  cannot be told from any other place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

_IPV4 = {
    "0.0.0.0/0": True,
    "0.0.0.0/8": False,  # this network
    "10.0.0.0/8": False,  # private use
    "100.64.0.0/10": False,  # shared address space; 100.100.100.200 is the metadata of Alibaba Cloud
    "127.0.0.0/8": False,  # loopback
    "168.63.129.16/32": False,  # metadata and agent of Microsoft Azure, in a public block
    "169.254.0.0/16": False,  # link-local; 169.254.169.254 is the metadata of most clouds
    "172.16.0.0/12": False,  # private use
    "192.0.0.0/24": False,  # protocol assignments; 192.0.0.192 is the metadata of Oracle Cloud
    "192.0.2.0/24": False,  # documentation
    "192.88.99.0/24": False,  # relays of 6to4 and 6a44
    "192.168.0.0/16": False,  # private use
    "198.18.0.0/15": False,  # benchmarking
    "198.51.100.0/24": False,  # documentation
    "203.0.113.0/24": False,  # documentation
    "224.0.0.0/4": False,  # multicast
    "240.0.0.0/4": False,  # reserved, and the limited broadcast
}
_IPV6 = {
    "::/0": False,  # fc00::/7, fe80::/10, fec0::/10, ff00::/8, 100::/64, 5f00::/16, unassigned ones
    "::/96": True,  # here and below True means: as far as the embedded IPv4 address is public
    "::ffff:0:0/96": True,
    "::ffff:0:0:0/96": True,
    "64:ff9b::/96": True,
    "64:ff9b:1::/48": True,
    "2000::/3": True,
    "2001::/23": False,  # protocol assignments
    "2001::/32": True,  # Teredo
    "2001:3::/32": True,  # AMT
    "2001:4:112::/48": True,  # AS112
    "2001:db8::/32": False,  # documentation
    "3fff::/20": False,  # documentation
}
_IN_LAST_32_BITS = tuple(
    int(IPv6Network(block).network_address) >> 32
    for block in ("::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96")
)  # compatible, mapped (RFC 4291), translated (RFC 2765), NAT64 (RFC 6052)
_LOCAL_NAT64 = int(IPv6Network("64:ff9b:1::/48").network_address) >> 80  # RFC 8215
_ISATAP, _ISATAP_MASK = 0x5EFE, 0xFCFFFFFF  # RFC 5214; the mask leaves out the bits u and g
_32_BITS = 0xFFFFFFFF
_METADATA_NAMES = frozenset({
    "metadata", "metadata.google.internal", "metadata.goog",
    "instance-data", "instance-data.ec2.internal",
    "metadata.azure.internal", "metadata.tencentyun.com", "api.metadata.cloud.ibm.com",
    "metadata.packet.net", "metadata.platformequinix.com",
})  # fmt: skip


_Blocks = list[tuple[int, int, bool]]  # the first and last address as numbers, and whether they may be reached


def _smallest_first(blocks: Mapping[str, bool]) -> _Blocks:
    found = [(ip_network(block), is_open) for block, is_open in blocks.items()]
    found.sort(key=lambda one: one[0].prefixlen, reverse=True)
    return [(int(net.network_address), int(net.broadcast_address), is_open) for net, is_open in found]


def _is_open(address: int, blocks: _Blocks) -> bool:
    """As the smallest block that holds an address says; the last one holds all."""
    return next(is_open for first, last, is_open in blocks if first <= address <= last)


_BLOCKS_IPV4, _BLOCKS_IPV6 = _smallest_first(_IPV4), _smallest_first(_IPV6)


@lru_cache(maxsize=1024)
def is_address(host: str) -> bool:
    """Whether a host is an IP address in its usual spelling; then no resolver has more to say.

    Others, as 127.1 or 0x7f000001, are a resolver's to read.
    """
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Whether an IP address in text form is globally reachable unicast.

    What is not an IP address is not public, nor is one with a zone: that names an interface of ours.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    number = int(ip)
    if isinstance(ip, IPv4Address):
        return _is_open(number, _BLOCKS_IPV4)
    if ip.scope_id is not None or not _is_open(number, _BLOCKS_IPV6):
        return False
    return all(_is_open(embedded, _BLOCKS_IPV4) for embedded in _embedded(ip))


def is_metadata_name(host: str) -> bool:
    """Whether a host name is one by which a large cloud serves its machines their credentials."""
    return host.rstrip(".").lower() in _METADATA_NAMES


def _embedded(address: IPv6Address) -> Iterator[int]:
    """The IPv4 addresses in an IPv6 one, by every form that it has."""
    ip = int(address)
    if ip >> 32 in _IN_LAST_32_BITS:
        yield ip & _32_BITS
    elif ip >> 80 == _LOCAL_NAT64:
        yield from _translated_locally(ip)
    elif address.sixtofour:
        yield int(address.sixtofour)
    elif address.teredo:
        yield from map(int, address.teredo)  # server and client
    if ip >> 32 & _ISATAP_MASK == _ISATAP:
        yield ip & _32_BITS


def _translated_locally(ip: int) -> Iterator[int]:
    """As RFC 6052 places the address after a prefix of 48, 56, 64 and 96 bits.

    Which of them the network uses is not known. A reading in 0.0.0.0/8, where nothing is, comes of
    zeros that belong to the prefix or fill up; it counts only when there is no other.
    """
    readings = (
        (ip >> 64 & 0xFFFF) << 16 | ip >> 40 & 0xFFFF,
        (ip >> 64 & 0xFF) << 24 | ip >> 32 & 0xFFFFFF,
        ip >> 24 & _32_BITS,
        ip & _32_BITS,
    )
    yield from [reading for reading in readings if reading >> 24] or [0]
