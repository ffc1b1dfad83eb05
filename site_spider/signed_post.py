"""Sends an event to a URL, once; whether, when and how often is decided by who has it.

The request is one POST without redirects, to the first address of the host that passes the guard: that which
was judged. Of the answer the first line is read, up to a deadline.
"""

from __future__ import annotations

import hmac
import json
import re
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from w3lib.url import safe_url_string

from site_spider import runtime

_SECONDS = 15.0  # for all of one attempt
_MOST_BYTES = 16_384  # of the answer, and of what is said before it: early hints have a line for each of many links
_LONGEST_ERROR = 200
_BEFORE = re.compile(rb"\A(?:HTTP/1\.\d 1\d\d[^\n]*\n(?:[^\r\n][^\n]*\n)*\r?\n)+")
_FIRST_LINE = re.compile(rb"(?!HTTP/1\.\d 1)[^\n]*\n")

MayReach = Callable[[str, str], bool]  # a host, and one of its addresses


def secret_of(keys: Sequence[bytes]) -> bytes:
    """What the receiver verifies with: made of the first key of SITE_SPILL_KEY; empty without one."""
    return hmac.new(keys[0], b"site_spider webhook", "sha256").hexdigest().encode() if keys else b""


def post(url: str, event: Mapping[str, Any], secret: bytes, may_reach: MayReach, event_id: str = "") -> tuple[int, str]:
    """Try once; if there is a secret, the event is signed. Blocks for some seconds at most, and never raises.

    Returns the status, 0 when nothing answered, and why it was not taken; empty when it was.
    """
    deadline = runtime.monotonic() + _SECONDS
    try:
        parts = urlsplit(safe_url_string(url))
        sent = _request(parts, event, secret, event_id or f"{event['task_id']}.{event['generation']}")
        status = _status(_exchange(parts, sent, may_reach, deadline))
    except (OSError, ValueError) as error:
        return 0, f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
    return status, "" if 200 <= status < 300 else f"HTTP {status}"


def _request(url: SplitResult, event: Mapping[str, Any], secret: bytes, event_id: str) -> bytes:
    """With a signature over time and body."""
    now_seconds = int(runtime.time())
    body = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    lines = [
        f"POST {url.path or '/'}{f'?{url.query}' if url.query else ''} HTTP/1.1",
        f"Host: {url.netloc.rpartition('@')[2]}",
        "User-Agent: site_spider",
        "Connection: close",
        f"Content-Length: {len(body)}",
        "Content-Type: application/json",
        f"X-Site-Spider-Event-Id: {json.dumps(event_id)[1:-1]}",
        f"X-Site-Spider-Timestamp: {now_seconds}",
    ]
    if secret:
        signed = hmac.new(secret, b"%d.%s" % (now_seconds, body), "sha256").hexdigest()
        lines.append(f"X-Site-Spider-Signature: sha256={signed}")
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


def _exchange(url: SplitResult, sent: bytes, may_reach: MayReach, deadline: float) -> bytes:
    host, is_tls = url.hostname or "", url.scheme == "https"
    port = url.port or (443 if is_tls else 80)
    with socket.create_connection((_address(host, port, may_reach), port), _left(deadline)) as plain:
        stream = ssl.create_default_context().wrap_socket(plain, server_hostname=host) if is_tls else plain
        with stream:
            stream.settimeout(_left(deadline))
            stream.sendall(sent)
            return _first_line(stream, deadline)


def _address(host: str, port: int, may_reach: MayReach) -> str:
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in found:
        if may_reach(host, address):
            return address
    raise OSError(f"{host} has no public address; SITE_ALLOW_PRIVATE_HOSTS=true allows private ones")


def _first_line(stream: socket.socket, deadline: float) -> bytes:
    """The first line of the answer itself, not of interim answers (100 Continue, 103 Early Hints)."""
    answer, read = b"", 0
    while not _FIRST_LINE.match(answer := _BEFORE.sub(b"", answer)) and read < _MOST_BYTES:
        stream.settimeout(_left(deadline))
        if not (more := stream.recv(_MOST_BYTES)):
            break
        answer, read = answer + more, read + len(more)
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
