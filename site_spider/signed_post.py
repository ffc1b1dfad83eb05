"""Sends an event to a URL, once; whether, when and how often is decided by who has it.

The request is one POST without redirects, to the first address of the host that passes the guard: that which
was judged. Of the answer the first line is read, up to a deadline.
"""

from __future__ import annotations

import hmac
import json
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from w3lib.url import safe_url_string

from site_spider import runtime

_SECONDS = 15.0  # for all of one attempt
_MOST_BYTES = 1_000  # of the answer
_LONGEST_ERROR = 200


class Notice(NamedTuple):
    """What is sent."""

    body: bytes
    headers: Mapping[str, str]


class Posted(NamedTuple):
    """`error` is empty when it was taken, `status` 0 when nothing answered."""

    status: int
    error: str


MayReach = Callable[[str, str], bool]  # a host, and one of its addresses


def secret_of(keys: Sequence[bytes]) -> bytes:
    """What the receiver verifies with: made of the first key of SITE_SPILL_KEY; empty without one."""
    return hmac.new(keys[0], b"site_spider webhook", "sha256").hexdigest().encode() if keys else b""


def notice(event: Mapping[str, Any], secret: bytes, now_seconds: int, event_id: str | None = None) -> Notice:
    """The event with its id and, if there is a secret, its signature over time and body."""
    named = f"{event['task_id']}.{event['generation']}" if event_id is None else event_id
    body = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    headers = {
        "Content-Type": "application/json",
        "X-Site-Spider-Event-Id": json.dumps(named)[1:-1],
        "X-Site-Spider-Timestamp": str(now_seconds),
    }
    if secret:
        signed = hmac.new(secret, b"%d.%s" % (now_seconds, body), "sha256").hexdigest()
        headers["X-Site-Spider-Signature"] = f"sha256={signed}"
    return Notice(body, headers)


def post(url: str, sent: Notice, may_reach: MayReach) -> Posted:
    """Try once. Blocks for some seconds at most, and never raises."""
    deadline = runtime.monotonic() + _SECONDS
    try:
        status = _status(_exchange(url, sent, may_reach, deadline))
    except (OSError, ValueError) as error:
        return Posted(0, f"{type(error).__name__}: {error}"[:_LONGEST_ERROR])
    return Posted(status, "" if 200 <= status < 300 else f"HTTP {status}")


def _exchange(url: str, sent: Notice, may_reach: MayReach, deadline: float) -> bytes:
    parts = urlsplit(safe_url_string(url))
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    with socket.create_connection((_address(host, port, may_reach), port), _left(deadline)) as plain:
        stream = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if is_tls else plain
        with stream:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            stream.settimeout(_left(deadline))
            stream.sendall(_request(target, parts.netloc.rpartition("@")[2], sent))
            return _first_line(stream, deadline)


def _address(host: str, port: int, may_reach: MayReach) -> str:
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in found:
        if may_reach(host, address):
            return address
    raise OSError(f"{host} has no public address; SITE_ALLOW_PRIVATE_HOSTS=true allows private ones")


def _request(target: str, host: str, sent: Notice) -> bytes:
    lines = [
        f"POST {target} HTTP/1.1",
        f"Host: {host}",
        "User-Agent: site_spider",
        "Connection: close",
        f"Content-Length: {len(sent.body)}",
        *(f"{name}: {value}" for name, value in sent.headers.items()),
    ]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + sent.body


def _first_line(stream: socket.socket, deadline: float) -> bytes:
    answer = b""
    while b"\n" not in answer and len(answer) < _MOST_BYTES:
        stream.settimeout(_left(deadline))
        if not (more := stream.recv(_MOST_BYTES)):
            break
        answer += more
    return answer.partition(b"\n")[0]


def _left(deadline: float) -> float:
    if (seconds := deadline - runtime.monotonic()) <= 0:
        raise TimeoutError(f"no answer within {_SECONDS:g} s")
    return seconds


def _status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/") or not code.isdigit():
        raise ValueError(f"the answer is no HTTP: {line[:40]!r}")
    return int(code)
