"""Pages that fail: by status, for a while or for ever, or below HTTP."""

from __future__ import annotations

from tools.site.exchange import Answer, Ask, Fault, page
from tools.site.pages import HTML, PLAIN, of_text
from tools.site.text import ordinary

NO_BODY = {204, 304}


@page("status")
def status(ask: Ask) -> Answer:
    """Always this status: /status/404/x."""
    code = int(ask.parts[1])
    if code in NO_BODY:
        return Answer(status=code)
    return of_text(f"<p>Status {code} for {ask.target}</p>", HTML, code)


@page("flaky")
def flaky(ask: Ask) -> Answer:
    """/flaky/503/2/x: that status for the first two requests, then a page. A 429 says Retry-After: 1."""
    code, failures = int(ask.parts[1]), int(ask.parts[2])
    if ask.attempt >= failures:
        return of_text(ordinary(ask.target))
    wait = (("Retry-After", "1"),) if code == 429 else ()
    return of_text(f"Not yet, {ask.target}", (*PLAIN, *wait), code)


@page("fault")
def fault(ask: Ask) -> Answer:
    """/fault/reset/N/x fails below HTTP for the first N requests, or for ever when N is 0."""
    kind, failures = Fault(ask.parts[1].replace("-", " ")), int(ask.parts[2])
    text = ordinary(ask.target)
    if failures and ask.attempt >= failures:
        return of_text(text)
    body = text.encode()
    longer = len(body) + 1000 if kind is Fault.SHORT else None
    return Answer(headers=HTML, body=body, text=text, declared_length=longer, fault=kind, close=True)


@page("cut-off")
def cut_off(ask: Ask) -> Answer:
    """Content-Length is less than what comes: /cut-off/keep/x, /cut-off/close/x (says Connection: close)."""
    text = ordinary(ask.target)
    kept = text[: len(text) // 2]
    return Answer(
        headers=HTML,
        body=text.encode(),
        text=kept,
        size=len(kept),
        declared_length=len(kept),
        close=ask.parts[1] == "close",
    )
