"""Escapes text of unknown origin for terminals and logs.

Control characters, escape sequences, marks that reverse the direction of text, line separators
and halves of surrogate pairs become escapes such as `\x1b` and `\u202e`. Stored documents are
not escaped: only what is shown is.
"""

from __future__ import annotations

import json
from math import isinf

from site_spider.errors import SeedError

LONGEST_LINE = 4_000  # characters of one line of a log
LONGEST_TEXT = 100_000  # characters of one record, traceback included


def cut(text: str, width: int) -> str:
    """At most `width` characters; an ellipsis says that there were more."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def escaped(text: str) -> str:
    """The text in one line."""
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def escaped_lines(text: str) -> str:
    """The text with its line ends and tabs; everything else that is not printable is escaped."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(escaped, line.split("\t"))) for line in text.split("\n"))


def escaped_json(text: str) -> str:
    """JSON that reads the same; what is not printable only stands inside its strings."""
    return text if text.isprintable() else "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in text)


def for_log(text: str, *, one_line: bool) -> str:
    """The text of a log record: escaped, and long lines cut."""
    if len(text) <= LONGEST_LINE and text.isprintable():
        return text
    if one_line:
        return _cut(escaped(_cut(text, LONGEST_LINE)), LONGEST_LINE)
    lines = _cut(text, LONGEST_TEXT).split("\n")
    return "\n".join(_cut(escaped_lines(_cut(line, LONGEST_LINE)), LONGEST_LINE) for line in lines)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 20]}... ({len(text)} long)"[:most]


# --- reason: words the reason of a SeedError for dead-letter headers and terminals -----------------------
# So it is one line of printable ASCII, short, and names the field, whatever the message held.

SHOWN_CHARACTERS = 80
REASON_CHARACTERS = 300

_KINDS = (
    (dict, "an object"),
    (list | tuple, "a list"),
    (str, "a string"),
    (bool, "true or false"),
    (int | float, "a number"),
    (object, "null"),
)


def shown(value: object) -> str:
    """A JSON value as a reason shows it: printable ASCII, at most 80 characters."""
    if isinstance(value, dict | list):
        return kind(value)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    # Cut before and after: ascii() of a megabyte costs, and one character can become ten.
    text = ascii(value[: SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."


def kind(value: object) -> str:
    """What sort of JSON value it is, for one that may be secret."""
    return next(word for sort, word in _KINDS if isinstance(value, sort))


def refused(field: str, why: str) -> SeedError:
    """The error to raise for a field; at most 300 characters, one line of printable ASCII.

    `field` may come from the message as it is; in `why` such text passes through `shown` first.
    """
    named = field[:SHOWN_CHARACTERS].encode("unicode_escape").decode()
    reason = f"{named}: {why}".encode("ascii", "backslashreplace").decode()
    return SeedError(reason if len(reason) <= REASON_CHARACTERS else f"{reason[: REASON_CHARACTERS - 3]}...")


def up_to(seconds: float) -> str:
    """How long something may take at most, such as " up to 30 s"; nothing when it may take for ever."""
    return "" if isinf(seconds) else f" up to {seconds:.0f} s"


def plural(number: int, noun: str) -> str:
    """The number with its noun."""
    many = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"
