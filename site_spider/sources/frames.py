"""What the crawl and the process that extracts send each other: a JSON object, and bytes behind it."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, BinaryIO, Final

MAX_FRAME_BYTES: Final = 64_000_000
SIZES: Final = struct.Struct("!II")  # bytes of the JSON, and behind it


def frame(head: dict[str, Any], body: bytes = b"") -> bytes:
    """What goes before the body, which is sent by itself."""
    said = json.dumps(head).encode()
    return SIZES.pack(len(said), len(body)) + said


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """The next one; None at the end."""
    sizes = stream.read(SIZES.size)
    if len(sizes) < SIZES.size:
        return None
    head_bytes, body_bytes = SIZES.unpack(sizes)
    said = stream.read(head_bytes)
    body = stream.read(body_bytes)
    if len(said) + len(body) < head_bytes + body_bytes:
        return None
    return json.loads(said), body


def write_frame(connection: socket.socket, head: dict[str, Any]) -> None:
    """One without a body."""
    connection.sendall(frame(head))
