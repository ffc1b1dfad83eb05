"""Words the reason of a SeedError for dead-letter headers and terminals.

So it is one line of printable ASCII, short, and names the field, whatever the message held.
"""

from __future__ import annotations

from site_spider.errors import SeedError

SHOWN_CHARACTERS = 80
REASON_CHARACTERS = 300

_WORDS = {True: "true", False: "false", None: "null"}
_KINDS = (
    (dict, "an object"),
    (list, "a list"),
    (str, "a string"),
    (bool, "true or false"),
    (int | float, "a number"),
    (object, "null"),
)


def shown(value: object) -> str:
    """A JSON value as a reason shows it: printable ASCII, at most 80 characters."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None or isinstance(value, bool):
        return _WORDS[value]
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
