"""The process that extracts: one page after the other, each within a limit of CPU time.

An XPath on a page made for it can take minutes inside of libxml2, where no other thread can stop it. So
the system does: a timer of the process ends it. Whoever sent the page sees the end of the connection.
It speaks on its standard input, a socket: frames of a JSON head and bytes, see `frames`.
"""

from __future__ import annotations

import resource
import signal
import socket
import sys
from typing import Any

from site_spider.page.decode import BodyLimits
from site_spider.page.links import read_text
from site_spider.sources.extraction import MAX_PAGE_CHARS, SourcePage, extract
from site_spider.sources.frames import read_frame, write_frame
from site_spider.sources.model import Source

MEMORY_BYTES = 1_000_000_000


def serve(connection: socket.socket) -> None:
    """Answer until the other side closes."""
    sources: dict[str, Source] = {}
    with connection, connection.makefile("rb") as stream:
        while (frame := read_frame(stream)) is not None:
            head, body = frame
            if "source" in head:
                sources[head["name"]] = Source.model_validate(head["source"], strict=False)
            signal.setitimer(signal.ITIMER_PROF, head["seconds"])
            answer = _answered(head, body, sources[head["name"]])
            signal.setitimer(signal.ITIMER_PROF, 0)
            write_frame(connection, answer)


def _answered(head: dict[str, Any], body: bytes, source: Source) -> dict[str, Any]:
    try:
        return _answer(head, body, source)
    except MemoryError:
        raise  # a new process begins without what this page has left
    except Exception as error:  # noqa: BLE001 - a page ends nothing but itself
        said = f"{source.name} could not be applied: {type(error).__name__}: {str(error)[:200]!a}"
        return {"items": [], "links": [], "notes": [], "lost": [said]}


def _answer(head: dict[str, Any], body: bytes, source: Source) -> dict[str, Any]:
    text, encoding = _decoded(body, head["content_type"])
    page = SourcePage(head["url"], text, encoding, follow_nofollow=head["follow_nofollow"])
    found = extract(source, page, wants_links=head["wants_links"])
    return {"items": found.items, "links": found.links, "notes": found.notes, "lost": found.lost}


def _decoded(body: bytes, content_type: str | None) -> tuple[str, str]:
    steps = read_text(body, content_type, BodyLimits(max_bytes=1), MAX_PAGE_CHARS)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value.read, end.value.encoding


def main() -> None:
    """With the connection as standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the crawl, which closes the connection
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(socket.socket(fileno=sys.stdin.fileno()))


if __name__ == "__main__":
    main()
