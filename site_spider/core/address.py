"""Which addresses a crawl may reach: public ones, unless private hosts are allowed."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
_COMPATIBLE = IPv6Network("::/96")  # RFC 4291, deprecated: likewise


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

    IPv4 addresses inside IPv6 ones (mapped, NAT64, 6to4, Teredo) are judged themselves.
    What is not an IP address is not public.
    """
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    inner = _embedded(ip) if isinstance(ip, IPv6Address) else None
    if inner is not None:
        ip = inner
    return ip.is_global and not ip.is_multicast


def _embedded(ip: IPv6Address) -> IPv4Address | None:
    if ip in _NAT64 or (ip in _COMPATIBLE and int(ip) > 1):
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
