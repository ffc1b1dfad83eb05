"""What links are compared as: their canonical URL without what tells no two pages apart.

Left out are parameters of trackers, session ids, and the name of an index page. A URL is never fetched, nor
stored, in this form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

TRACKING, NONE = "tracking", "none"  # words in a list of parameters
LONGEST_NAME, MOST_NAMES = 100, 200

_TRACKERS: Final = (
    "utm_*", "mtm_*", "matomo_*", "piwik_*", "hsa_*", "vero_*", "pk_campaign", "pk_kwd", "pk_source",
    "pk_medium", "pk_content", "gclid", "gclsrc", "gbraid", "wbraid", "gad_source", "gad_campaignid", "dclid",
    "fbclid", "fb_action_ids", "fb_action_types", "msclkid", "yclid", "ysclid", "twclid", "ttclid",
    "li_fat_id", "igshid", "igsh", "mc_cid", "mc_eid", "mkt_tok", "oly_anon_id", "oly_enc_id", "s_kwcid",
    "ef_id", "wickedid", "rb_clickid", "_openstat", "_ga", "_gl", "_hsenc", "_hsmi", "srsltid", "epik",
    "zanpid", "irclickid",
)  # fmt: skip
_SESSIONS: Final = ("jsessionid", "phpsessid", "sessid", "aspsessionid*", "cftoken", "zenid", "oscsid")
_IN_PATH = re.compile(
    r";(?:jsessionid|phpsessid|sessionid|sid)=[^/;]*|/\(S\([0-9a-z]{8,64}\)\)(?=/|$)", re.IGNORECASE
)
_INDEX = (
    "/index.html", "/index.htm", "/index.php", "/index.jsp", "/index.asp", "/index.aspx", "/default.html",
    "/default.htm", "/default.asp", "/default.aspx",
)  # fmt: skip
_NAME = re.compile(rf"[!-~]{{1,{LONGEST_NAME}}}")


class UrlForm:
    """Of canonical URLs. Two that leave out the same parameters are one object: see `form_of`."""

    def __init__(self, names: Sequence[str]) -> None:
        dropped = [name for name in names if name != TRACKING]
        dropped += [*_SESSIONS, *(_TRACKERS if TRACKING in names else ())]
        self._names = frozenset(name for name in dropped if not name.endswith("*"))
        self._beginnings = tuple(name[:-1] for name in dropped if name.endswith("*"))

    def of(self, url: str) -> str:
        """What a canonical URL is compared as; most are their own form."""
        path, mark, query = url.partition("?")
        if ";" in path or "(" in path:
            path = _IN_PATH.sub("", path)
        if path.endswith(_INDEX):
            path = path[: path.rfind("/") + 1]
        if not mark:
            return path
        kept = "&".join(pair for pair in query.split("&") if not self.drops(pair.partition("=")[0]))
        return f"{path}?{kept}" if kept else path

    def drops(self, name: str) -> bool:
        """Whether a parameter is left out."""
        name = name.lower()
        return name in self._names or name.startswith(self._beginnings)


def form_of(names: Sequence[str]) -> UrlForm | None:
    """With these parameters left out, `tracking` among them, or none at all. Raises ValueError."""
    if len(names) > MOST_NAMES:
        raise ValueError(f"has {len(names)} names, but at most {MOST_NAMES} are taken")
    names = tuple(sorted({name.lower() for name in names}))
    for name in names:
        if not _NAME.fullmatch(name) or name.strip("*") == "" or "*" in name[:-1]:
            raise ValueError(
                f"{name[:LONGEST_NAME]!r} is no name of a parameter; a star may stand at its end"
            )
    if NONE in names and len(names) > 1:
        raise ValueError(f"says {NONE} beside other names")
    return None if not names or NONE in names else _form(names)


_form = lru_cache(maxsize=1_000)(UrlForm)


# --- shape -----------------------------------------------------------------------------------------------
# What the path of a URL looks like: one without end, or one of many pages that a program makes.


_FEWEST_SEGMENTS = 3
_MOST_LOOKED_AT = 100  # segments
_LONGEST_PATTERN = 300  # characters
_HEX = re.compile(  # UUIDs, and numbers that are no words and no decimals
    r"(?<![0-9a-z])(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,})"
    r"(?![0-9a-z])",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"[0-9]+")


class Shape(NamedTuple):
    """The most that a link may have; 0: any number."""

    repeats: int = 3  # of segments in a row, one or several of them: so many are too many
    segments: int = 20
    length: int = 0  # characters of the URL

    def fault(self, url: str) -> str | None:
        """Which of them is too large."""
        repeats, most, length = self
        if length and len(url) > length:
            return "length"
        segments = url.split("/", _MOST_LOOKED_AT)[3:]  # with the query, which may have slashes too
        if len(segments) < _FEWEST_SEGMENTS or (len(segments) <= most and _are_distinct(segments)):
            return None
        segments = url.partition("?")[0].split("/", _MOST_LOOKED_AT)[3:]
        if most and len(segments) > most:
            return "segments"
        return "repeats" if repeats and _repeats(segments, repeats) else None


def _are_distinct(segments: list[str]) -> bool:
    return len(set(segments)) == len(segments)


def _repeats(segments: list[str], times: int) -> bool:
    """Whether some segments stand so many times in a row."""
    if len(segments) - len(set(segments)) < times - 1:
        return False
    for size in range(1, len(segments) // times + 1):
        run = 0  # segments that are as the one `size` before them
        for before, one in zip(segments, segments[size:], strict=False):
            run = run + 1 if one == before else 0
            if run >= size * (times - 1):
                return True
    return False


def pattern_of(url: str) -> str | None:
    """Host, path and query with N for digits and H for long hexadecimal numbers; None of one without any."""
    host, slash, rest = url.partition("://")[2].partition("/")
    rest = rest[:_LONGEST_PATTERN]
    found = _DIGITS.sub("N", _HEX.sub("H", rest))
    return f"{host}{slash}{found}" if found != rest else None
