"""Bounds the text of a robots.txt before it is parsed.

Parsers keep each rule once for every user agent of its group: of half a megabyte, the first
half names of agents and the second half rules, they make hundreds of millions. And a rule
with `*` is tried on every URL.
"""

from __future__ import annotations

LARGEST_BYTES = 500 * 1024  # RFC 9309: at least so much is to be parsed
_MOST_RULES = 100_000  # counted once for every agent of the group
_MOST_WILDCARDS = 2_000  # rules with `*`: all of them cost 26 ms for a URL of 8,000 characters
_ENDS_GROUP = ("allow", "dis", "dia", "crawl")  # beginnings of rules, misspelt ones included


def bounded(body: bytes) -> bytes:
    """The part of a robots.txt that is parsed, in UTF-8: whole lines from its beginning."""
    if len(body) > LARGEST_BYTES:
        body = body[:LARGEST_BYTES]
        body = body[: max(body.rfind(b"\n"), body.rfind(b"\r")) + 1]
    lines = body.decode("utf-8-sig", "ignore").splitlines()
    return "\n".join(lines[: _bearable(lines)]).encode()


def _bearable(lines: list[str]) -> int:
    """How many of the lines."""
    agents = rules = wildcards = 0
    is_rule = True
    for number, line in enumerate(lines):
        text = line.strip().lower()
        if text.startswith("user"):
            agents = 1 if is_rule else agents + 1
            is_rule = False
        elif text and not text.startswith("#"):
            is_rule = is_rule or text.startswith(_ENDS_GROUP)
            rules += max(1, agents)
            wildcards += "*" in text
            if rules > _MOST_RULES or wildcards > _MOST_WILDCARDS:
                return number
    return len(lines)
