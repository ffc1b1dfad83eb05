"""Escapes text of unknown origin for terminals and logs.

Control characters, escape sequences, marks that reverse the direction of text, line separators
and halves of surrogate pairs become escapes such as `\\x1b` and `\\u202e`. Stored documents are
not escaped: only what is shown is.
"""

from __future__ import annotations

import json

LONGEST_LINE = 4_000  # characters of one line of a log
LONGEST_TEXT = 100_000  # characters of one record, traceback included


def cut(text: str, width: int) -> str:
    """At most `width` characters; an ellipsis says that there were more."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def escaped(text: str) -> str:
    """The text in one line."""
    return text if text.isprintable() else "".join(map(_as_python, text))


def escaped_lines(text: str) -> str:
    """The text with its line ends and tabs; everything else that is not printable is escaped."""
    if text.isprintable():
        return text
    return "\n".join("\t".join(map(escaped, line.split("\t"))) for line in text.split("\n"))


def escaped_json(text: str) -> str:
    """JSON that reads the same; what is not printable only stands inside its strings."""
    return text if text.isprintable() else "".join(map(_as_json, text))


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


def _as_python(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _as_json(character: str) -> str:
    return character if character.isprintable() else json.dumps(character)[1:-1]
