"""The words of a page without mark-up and accents, for a server that cannot make them itself."""

from __future__ import annotations

import re
import unicodedata
from html import unescape
from typing import Final

MOST_CHARACTERS: Final = 200_000  # of mark-up that is looked at: about 10 ms
_MARKUP: Final = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1[^>]*>|\Z)|</?[a-z!?][^>]*(?:>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_COMBINING: Final = re.compile("[\u0300-\u036f]")


def page_text(body: str) -> str:
    """What a reader of the beginning of a page sees, with `é` as `e`."""
    text = " ".join(unescape(_MARKUP.sub(" ", body[:MOST_CHARACTERS])).split())
    return text if text.isascii() else _COMBINING.sub("", unicodedata.normalize("NFKD", text))
