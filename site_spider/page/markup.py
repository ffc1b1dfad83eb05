"""Reads the tags that can hold links from HTML, in linear time.

There is no tree: where a link leads depends on tags and attributes only, and building
trees is where hostile pages hurt (one tag of 50,000 attributes keeps libxml2 busy for
22 seconds, 200,000 nested elements do the same to others). This is the tokenizer of the
HTML standard, cut down:

- `_CANDIDATE` runs over the text in C and stops at a `<` that matters: a wanted tag, an
  element whose content is text, a comment, and any tag that is not plainly skippable
  (one whose quoted values hide a `<` or `>`, say). Everything else costs no Python.
- A tag ends at the first `>` outside a quoted attribute value. What is never closed
  (comment, tag, script) takes the rest of the page with it, as it does in browsers.
- No position is looked at by more than a fixed number of passes: a search that fails
  ends the scan, repeats are bounded or possessive over single characters only. Keep it
  so: a retry after a failed search is a quadratic trap.
- What a page can cost is bounded on top of that by the limits below.
- One search looks at a window of the text, because a match in C lets nothing else run. What is found is
  the same as without windows: what a match that was cut off says is not believed, see `_next_candidate`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from html.entities import html5

MAX_PAGE_CHARS = 5_000_000  # what stands behind is not read
MAX_TAG_CHARS = 16_384  # a longer tag is passed over
_SHORT = 300  # characters of a tag; what was read of such tags is kept: about 8 MB
MAX_PAGE_WORK = 250_000  # candidates and attributes; what stands behind is not read
_WINDOW = 32_768  # characters searched in one call: 2 ms at most
_LONGEST_TAG = 65_536  # a longer tag is read as an odd one, in windows
_LONGEST_END = 32  # characters that the end of a comment or of an element's text is shorter than
_STEP = 500  # candidates and attributes between two yields

_WANTED = "a|area|base|meta|frame|iframe"
_TEXT_ONLY = "script|style|title|textarea|xmp|noembed|noframes"

# Every alternative is settled by its first character, so that nothing is tried twice; at
# most so many values, because each pass of a group costs memory until the match is over.
# Classes name both cases: one that ignores case is called for each character.
_CANDIDATE = re.compile(
    rf"""(?-i:<(?!/[a-zA-Z0-9]*+>|[a-zA-Z][a-zA-Z0-9]?+>)(?=[a-zA-Z/!?]))(?:
      (?-i:(?=[abfimABFIM]))(?P<wanted>{_WANTED})(?=[\s/>])
      (?P<written>[^=>]*+(?:=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+|(?=>))[^=>]*+){{0,100}})>
    | (?-i:(?=[npstxNPSTX]))(?P<text>{_TEXT_ONLY}|plaintext)(?=[\s/>])
    | (?P<comment>!--)
    | (?-i:(?!/?[a-zA-Z][^<>"']*+(?:(?:"[^"<>]*+"|'[^'<>]*+')[^<>"']*+){{0,40}}>
           |[!?][^<>]*+>|/[^a-zA-Z<>][^<>]*+>)
      (?P<other>/?[!?a-zA-Z]?))
    )""",
    re.IGNORECASE | re.ASCII | re.VERBOSE,
)
# Quotes mean something behind `=` only, so this is all it takes to find the end of a tag.
_TAG_REST = re.compile(r"""(?:()(?:[^=>]++|=\s*+(?:"[^"]*+"?|'[^']*+'?|[^\s>"'][^\s>]*+)?)){0,500}""", re.ASCII)
_NOT_BLANK = re.compile(r"\S", re.ASCII)
_VALUE_END = re.compile(r"[\s>]", re.ASCII)
_ATTRIBUTE = re.compile(r"""([^\s/>][^\s/>=]*+)(?:\s*+=\s*+(?:"([^"]*+)"?|'([^']*+)'?|([^\s>]*+)))?""", re.ASCII)
_COMMENT_END = re.compile("--!?>")
_TEXT_END = {
    name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE | re.ASCII) for name in [*_TEXT_ONLY.split("|"), "iframe"]
}
_REFERENCE = re.compile(r"&(?:#[0-9]++|#[xX][0-9a-fA-F]++|[a-zA-Z][a-zA-Z0-9]*+);?+=?+")


# A start tag: lower-case name, and lower-case attribute names with their values as written.
# A bare tuple, because there are as many of these as links.
Tag = tuple[str, Mapping[str, str]]


def tags(text: str) -> Iterator[Tag | None]:
    """The start tags of a, area, base, meta, frame and iframe elements, in the order of the page.

    None stands between them after each milliseconds of work without one. Never raises; ends early at
    what browsers read as the end of the page, and at this module's limits.
    """
    end = min(len(text), MAX_PAGE_CHARS)
    position, work, pause = 0, MAX_PAGE_WORK, MAX_PAGE_WORK - _STEP
    search = _CANDIDATE.search
    while work > 0:
        if work <= pause:
            pause = work - _STEP
            yield None
        cut = position + _WINDOW
        found = search(text, position, cut if cut < end else end)
        if found is None:
            if cut >= end:
                return
            position = cut - (text[cut - 1] == "<")  # of all others the `>` was seen
            yield None
            continue
        work -= 1
        wanted, written = found.group("wanted", "written")
        if written is None:
            position, found = _looked_at_again(text, found, end)
            if found is None:
                continue
            wanted, written = found.group("wanted", "written")
        else:
            position = found.end()
        name = wanted.lower()
        if len(written) <= MAX_TAG_CHARS:
            attributes, count = (_short_attributes if len(written) <= _SHORT else _attributes)(written)
            work -= count
            yield name, attributes
        if name == "iframe":
            position = _content_end(text, name, position, end)


def _looked_at_again(text: str, found: re.Match[str], end: int) -> tuple[int, re.Match[str] | None]:
    """Where to go on after a candidate, and the candidate if it is a wanted tag that a window cut off."""
    start = found.start()
    whole = _CANDIDATE.match(text, start, min(start + _LONGEST_TAG, end))
    if whole is None:
        return start + 1, None
    if whole["written"] is None:
        return _behind(text, whole, end), None
    return whole.end(), whole


def _attributes(written: str) -> tuple[Mapping[str, str], int]:
    """Attributes by name, and how many were written."""
    found = _ATTRIBUTE.findall(written)
    # Backwards, because the first of several attributes of one name counts.
    return {key.lower(): a or b or c for key, a, b, c in found[::-1]}, len(found)


_short_attributes = lru_cache(maxsize=8_192)(_attributes)  # the same menu is on every page of a site


def unescape(value: str) -> str:
    """Resolve the character references in an attribute value, by the rule for attributes.

    That rule leaves `&copy=1` alone, which is a parameter of a query and no sign.
    """
    return _REFERENCE.sub(_referenced, value) if "&" in value else value


def _referenced(found: re.Match[str]) -> str:
    reference = found[0]
    tail = "=" if reference.endswith("=") else ""
    name = reference[1:].removesuffix("=")
    if name.startswith("#"):
        # Python refuses to read integers of thousands of digits.
        return (html.unescape(f"&{name}") if len(name) < 20 else "\ufffd") + tail
    if name not in html5 or (tail and not name.endswith(";")):
        return reference
    return html5[name] + tail


def _behind(text: str, found: re.Match[str], end: int) -> int:
    """Where to go on after a candidate that holds no link."""
    if found.lastgroup == "comment":
        # From its own dashes on, because `<!-->` is a whole comment.
        closed = _search(_COMMENT_END, text, found.start("comment") + 1, end)
        return closed.end() if closed else end
    if found.lastgroup == "text":
        return _content_end(text, found["text"].lower(), _tag_end(text, found.end(), end), end)
    if found["other"][-1:].isalpha():
        return _tag_end(text, found.end(), end)
    # a declaration, where quotes mean nothing
    return (text.find(">", found.end(), end) + 1) or end


def _tag_end(text: str, position: int, end: int) -> int:
    """Behind the `>` of the tag; the end of the text if there is none."""
    while position < end and text[position] != ">":
        cut = min(position + _WINDOW, end)
        rest = _TAG_REST.match(text, position, cut)
        assert rest is not None
        if rest.end() < cut or cut == end:
            position = rest.end()
        elif rest.start(1) > position:
            position = rest.start(1)  # the last part was cut off
        else:
            position = _part_end(text, position, end)
    return min(position + 1, end)


def _part_end(text: str, position: int, end: int) -> int:
    """Behind a part of a tag that is longer than a window."""
    if text[position] != "=":
        return position + _WINDOW
    value = _search(_NOT_BLANK, text, position + 1, end)
    if value is None:
        return end
    if value[0] in "\"'":
        return (text.find(value[0], value.end(), end) + 1) or end
    closed = _search(_VALUE_END, text, value.start(), end)
    return closed.start() if closed else end


def _content_end(text: str, name: str, position: int, end: int) -> int:
    """Behind the content of an element in which tags are only text."""
    # Browsers know self-closing scripts and titles in XHTML and SVG only, where they do occur.
    if text[position - 2 : position] == "/>":
        return position
    closed = _search(_TEXT_END[name], text, position, end) if name in _TEXT_END else None
    return closed.start() if closed else end


def _search(pattern: re.Pattern[str], text: str, position: int, end: int) -> re.Match[str] | None:
    """In windows, for a pattern that matches less than `_LONGEST_END`."""
    for begin in range(position, end, _WINDOW):
        if found := pattern.search(text, begin, min(begin + _WINDOW + _LONGEST_END, end)):
            return found
    return None
