"""Pages that send the crawler elsewhere."""

from __future__ import annotations

import re

from tools.site.exchange import Answer, Ask, host_name, page
from tools.site.pages import HTML, of_text
from tools.site.text import ordinary

LOOP = r"(?i)redirect|loop|duplicate|HTTP 30\d"


def _to(status: int, location: str, **more: object) -> Answer:
    text = f'<p>Moved to <a href="{location}">here</a>.</p>'
    return Answer(
        status=status,
        headers=(*HTML, ("Location", location)),
        body=text.encode(),
        text=text,
        **more,  # type: ignore[arg-type]
    )


@page("chain")
def chain(ask: Ask) -> Answer:
    """/chain/301-302/4-0/x: one hop for each code, to the host of that number (r: a relative URL)."""
    codes, hosts, identity = ask.parts[1].split("-"), ask.parts[2].split("-"), ask.identity
    rest = f"/chain/{'-'.join(codes[1:])}/{'-'.join(hosts[1:])}/{identity}"
    path = rest if len(codes) > 1 else f"/landed/{identity}"
    location = path if hosts[0] == "r" else ask.url(path, host_name(int(hosts[0])))
    return _to(int(codes[0]), location)


@page("countdown")
def countdown(ask: Ask) -> Answer:
    """/countdown/N/x: N hops inside the host, then a page."""
    left = int(ask.parts[1])
    if left:
        return _to(302, f"/countdown/{left - 1}/{ask.identity}")
    return of_text(ordinary(ask.target))


@page("loop")
def loop(ask: Ask) -> Answer:
    """/loop/a/x and /loop/b/x point at each other, /loop/self/x at itself."""
    other = {"a": "b", "b": "a", "self": "self"}[ask.parts[1]]
    return _to(302, f"/loop/{other}/{ask.identity}")


@page("gate")
def gate(ask: Ask) -> Answer:
    """Redirects to itself with a cookie, and opens when the cookie comes back."""
    name = "g" + re.sub(r"\W", "", ask.identity)
    if ask.cookies().get(name) == "open":
        return of_text(ordinary(ask.target))
    text = "<p>Wait for the cookie.</p>"
    lines = (("Location", ask.target), ("Set-Cookie", f"{name}=open; Path={ask.target}"))
    return of_text(text, (*HTML, *lines), 302)


@page("leads-to")
def leads_to(ask: Ask) -> Answer:
    """Redirects to where nothing must be fetched: /leads-to/file/x."""
    location = {
        "file": "file:///etc/passwd",
        "ftp": f"ftp://{ask.host}/etc/passwd",
        "data": "data:text/plain,root:x:0:0",
        "refused": f"http://{ask.host}:1/",
    }[ask.parts[1]]
    if ask.parts[1] == "refused":
        return _to(302, location)
    return _to(
        302,
        location,
        lenient={"status": (302, None), "description": r".", "body": None, "body_pattern": r"^(<p>Moved|$)"},
    )


@page("nowhere")
def nowhere(ask: Ask) -> Answer:
    """A redirect status without Location is a final answer: /nowhere/302/x."""
    return of_text("<p>Moved, but where?</p>", HTML, int(ask.parts[1]))


@page("to-echo")
def to_echo(ask: Ask) -> Answer:
    """/to-echo/307/x redirects with that status to /echo/x."""
    return _to(int(ask.parts[1]), f"/echo/{ask.identity}")
