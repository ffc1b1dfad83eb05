"""Sends an event to a URL, once; whether, when and how often is decided by who has it.

The request is one POST without redirects. Each address of the host is judged when it is connected to, and not
before: a name may have another one by then. Of the answer only the head is read.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from errno import EACCES
from typing import TYPE_CHECKING, Any

from w3lib.url import safe_url_string

from site_spider import runtime

if TYPE_CHECKING:
    from aiohttp import AddrInfoType

_SECONDS = 15.0  # for all of one attempt
_LONGEST_ERROR = 200

MayReach = Callable[[str, str], bool]  # a host, and one of its addresses


class _Loop(asyncio.SelectorEventLoop):
    """Looks names up on the thread that posts: the end of a process would wait for one of a pool."""

    async def getaddrinfo(self, host: Any, port: Any, **how: Any) -> Any:
        return socket.getaddrinfo(host, port, **how)


def secret_of(keys: Sequence[bytes]) -> bytes:
    """What the receiver verifies with: made of the first key of SITE_SPILL_KEY; empty without one."""
    return hmac.new(keys[0], b"site_spider webhook", "sha256").hexdigest().encode() if keys else b""


def post(url: str, event: Mapping[str, Any], secret: bytes, may_reach: MayReach, event_id: str = "") -> tuple[int, str]:
    """Try once; if there is a secret, the event is signed. Blocks for some seconds at most, and never raises.

    Returns the status, 0 when nothing answered, and why it was not taken; empty when it was.
    """
    from aiohttp import ClientError  # noqa: PLC0415 - no start of a crawl pays for it

    body = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    headers = _headers(body, secret, event_id or f"{event['task_id']}.{event['generation']}")
    try:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            status = runner.run(_status(safe_url_string(url), body, headers, may_reach))
    except (OSError, ValueError, ClientError) as error:
        said = getattr(error, "message", "") or str(error) or f"no answer within {_SECONDS:g} s"  # without the URL
        return 0, f"{type(error).__name__}: {' '.join(str(said).split())}"[:_LONGEST_ERROR]
    return status, "" if 200 <= status < 300 else f"HTTP {status}"


def _headers(body: bytes, secret: bytes, event_id: str) -> dict[str, str]:
    """With a signature over time and body."""
    now_seconds = int(runtime.time())
    headers = {
        "User-Agent": "site_spider",
        "Content-Type": "application/json",
        "X-Site-Spider-Event-Id": json.dumps(event_id)[1:-1],
        "X-Site-Spider-Timestamp": str(now_seconds),
    }
    if secret:
        signed = hmac.new(secret, b"%d.%s" % (now_seconds, body), "sha256").hexdigest()
        headers["X-Site-Spider-Signature"] = f"sha256={signed}"
    return headers


async def _status(url: str, body: bytes, headers: Mapping[str, str], may_reach: MayReach) -> int:
    from aiohttp import ClientSession, TCPConnector  # noqa: PLC0415 - as above
    from yarl import URL  # noqa: PLC0415 - as above

    to = URL(url, encoded=True)
    refusal = f"{to.raw_host} has no public address; SITE_ALLOW_PRIVATE_HOSTS=true allows private ones"

    def judged(found: AddrInfoType) -> socket.socket:
        if not may_reach(to.raw_host or "", str(found[4][0])):
            raise PermissionError(EACCES, refusal)
        return socket.socket(*found[:3])

    async with (
        asyncio.timeout(_SECONDS),
        ClientSession(connector=TCPConnector(socket_factory=judged)) as session,
        session.post(to, data=body, headers=headers, allow_redirects=False) as answer,
    ):
        return answer.status
