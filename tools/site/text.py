"""Text for the pages: the same for the same path, and cheap to make."""

from __future__ import annotations

import random
import zlib

_WORDS = (  # one string: easier to read than a list of 36
    "river stone morning market paper window garden letter number season engine island "
    "measure travel colour water silver thread bridge village story copper signal harbour "
    "winter orchard kettle lantern meadow compass ladder pocket timber violet basket candle"
)


def _paragraph(rng: random.Random) -> str:
    words = rng.choices(_WORDS.split(), k=rng.randint(50, 80))
    return f"<p>{' '.join(words).capitalize()}.</p>"


_RNG = random.Random(20)
_PARAGRAPHS = tuple(_paragraph(_RNG) for _ in range(97))


def number(word: str) -> int:
    """A number that depends on the word only."""
    return zlib.crc32(word.encode())


def paragraphs(word: str, count: int) -> str:
    """So many paragraphs, chosen by the word."""
    first = number(word)
    return "\n".join(_PARAGRAPHS[(first + 31 * index) % 97] for index in range(count))


def html(title: str, content: str, head: str = "") -> str:
    """A whole document around the content."""
    return (
        f"<!DOCTYPE html>\n<html>\n<head>{head}<title>{title}</title></head>\n"
        f"<body>\n<h1>{title}</h1>\n{content}\n</body>\n</html>\n"
    )


def ordinary(word: str) -> str:
    """A document of 2 to 10 KB that names the word."""
    return html(f"Page {word}", paragraphs(word, 5 + number(word) % 15))
