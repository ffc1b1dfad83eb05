"""The plain pages: each answers in one go and ends well."""

from __future__ import annotations

import json
import random
import re

from tools.site.exchange import Answer, Ask, Framing, Lines, host_name, page
from tools.site.text import html, number, ordinary, paragraphs

HTML: Lines = (("Content-Type", "text/html; charset=utf-8"),)
PLAIN: Lines = (("Content-Type", "text/plain; charset=utf-8"),)

TYPES = {
    "json": "application/json",
    "plain": "text/plain",
    "xml": "application/xml",
    "xhtml": "application/xhtml+xml; charset=utf-8",
    "css": "text/css",
    "javascript": "application/javascript",
}
EVERY_BYTE = bytes(range(256)) * 8
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x10\x00\x00\x00\x10\x08\x06\x00\x00\x00"


def of_text(text: str, headers: Lines = HTML, status: int = 200) -> Answer:
    """An ordinary answer of UTF-8 text."""
    return Answer(status=status, headers=headers, body=text.encode(), text=text)


@page("page")
@page("landed")
@page("leaf")
@page("disallowed")
@page("outside")
@page("never")
def plain_page(ask: Ask) -> Answer:
    """An HTML page without links."""
    return of_text(ordinary(ask.target))


@page("robots.txt")
def robots(ask: Ask) -> Answer:
    """Everything may be fetched but /disallowed/. The third host asks for a Crawl-delay."""
    delay = "Crawl-delay: 0.5\n" if ask.host == host_name(2) else ""
    return of_text(f"User-agent: *\nDisallow: /disallowed/\n{delay}", PLAIN)


@page("empty")
def empty(ask: Ask) -> Answer:
    """Status 200 and nothing else."""
    return of_text("")


@page("large")
def large(ask: Ask) -> Answer:
    """An HTML page of 3 MB."""
    block = paragraphs(ask.target, 97)
    return of_text(html(f"Large {ask.identity}", "\n".join([block] * (3_000_000 // len(block) + 1))))


@page("typed")
def typed(ask: Ask) -> Answer:
    """Text of a type that is not HTML: /typed/json/1."""
    name = ask.parts[1]
    content = {
        "json": json.dumps({"page": ask.target, "words": paragraphs(ask.target, 2)}),
        "xml": f"<?xml version='1.0'?><page><name>{ask.target}</name></page>",
        "xhtml": ordinary(ask.target),
    }.get(name, f"/* {ask.target} */ {paragraphs(ask.target, 3)}")
    return of_text(content, (("Content-Type", TYPES[name]),))


@page("binary")
def binary(ask: Ask) -> Answer:
    """Not text: /binary/png/1, /binary/bytes/1."""
    if ask.parts[1] == "png":
        tail = random.Random(number(ask.target)).randbytes(1500)
        return Answer(headers=(("Content-Type", "image/png"),), body=PNG + tail, text=None)
    return Answer(headers=(("Content-Type", "application/octet-stream"),), body=EVERY_BYTE, text=None)


@page("untyped")
def untyped(ask: Ask) -> Answer:
    """No Content-Type: /untyped/html/1, /untyped/binary/1."""
    if ask.parts[1] == "html":
        return of_text(ordinary(ask.target), ())
    return Answer(body=PNG + EVERY_BYTE, text=None)


@page("chunked")
def chunked(ask: Ask) -> Answer:
    """Chunked transfer encoding."""
    text = ordinary(ask.target)
    return Answer(headers=HTML, body=text.encode(), text=text, framing=Framing.CHUNKED)


@page("until-close")
def until_close(ask: Ask) -> Answer:
    """HTTP/1.0: the body ends where the connection does."""
    text = ordinary(ask.target)
    return Answer(
        headers=HTML, body=text.encode(), text=text, framing=Framing.CLOSE, close=True, http_version="1.0"
    )


@page("slow")
def slow(ask: Ask) -> Answer:
    """The first byte comes late: /slow/MILLISECONDS/1."""
    text = ordinary(ask.target)
    delay_seconds = int(ask.parts[1]) / 1000
    return Answer(headers=HTML, body=text.encode(), text=text, delay_seconds=delay_seconds)


@page("early-hints")
def early_hints(ask: Ask) -> Answer:
    """A 103 goes before the answer proper."""
    text = ordinary(ask.target)
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
    return Answer(headers=HTML, body=text.encode(), text=text, prelude=hints)


@page("echo")
def echo(ask: Ask) -> Answer:
    """Tells what came: method, body, and the header lines whose name begins with X-."""
    custom = {name: values for name, values in sorted(ask.headers.items()) if name.startswith("x-")}
    told = {"method": ask.method, "body_hex": ask.body.hex(), "headers": custom}
    return of_text(json.dumps(told), (("Content-Type", "application/json"),))


@page("repeated")
def repeated(ask: Ask) -> Answer:
    """Header lines that come more than once."""
    lines = (("X-Part", "one"), ("Set-Cookie", "a=1; Path=/repeated/"), ("X-Part", "two, three"))
    more = (("Set-Cookie", "b=2; Path=/repeated/; HttpOnly"), ("x-part", "four"))
    return of_text(ordinary(ask.target), (*HTML, *lines, *more))


ODD_LINES: dict[str, Lines] = {
    "names": (("X-!#$%&'*+-.^_`|~9", "token characters"), ("x-lower-case", "yes"), ("X-UPPER", "yes")),
    "values": (
        ("X-Empty", ""),
        ("X-Blanks", "  inside  it  "),
        ("X-Quoted", 'a="b; c", d:e'),
        ("X-Tab", "a\tb"),
    ),
    "long": (("X-Long", "v" * 6000),),
    "many": tuple((f"X-Line-{index}", str(index)) for index in range(80)),
    "bytes": (("X-Bytes", "na\xefve caf\xe9"),),
    "date": (("Date", "not a date"), ("Expires", "-1"), ("Server", "(none) / ∅".replace("∅", "0"))),
}


@page("odd")
def odd_headers(ask: Ask) -> Answer:
    """Header lines that are odd but legal: /odd/names/1."""
    name = ask.parts[1]
    if name == "reason":
        return Answer(headers=HTML, body=b"<p>no reason</p>", text="<p>no reason</p>", reason="")
    return of_text(ordinary(ask.target), (*HTML, *ODD_LINES[name]))


@page("cookie")
def cookie(ask: Ask) -> Answer:
    """/cookie/start/1 sets cookies and redirects to /cookie/end/1, which wants both back."""
    name = "c" + re.sub(r"\W", "", ask.identity)
    if ask.parts[1] == "start":
        lines = (
            ("Location", f"/cookie/end/{ask.identity}"),
            ("Set-Cookie", f"{name}=first; Path=/cookie/end/{ask.identity}"),
            ("Set-Cookie", f"{name}x=second; Path=/cookie/end/{ask.identity}; HttpOnly; SameSite=Lax"),
        )
        return of_text("<p>Take these.</p>", (*HTML, *lines), 302)
    if ask.cookies().get(name) == "first" and ask.cookies().get(f"{name}x") == "second":
        return of_text(ordinary(ask.target))
    return of_text("<p>No cookie, no page.</p>", HTML, 403)
