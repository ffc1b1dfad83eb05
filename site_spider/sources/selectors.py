"""Selectors of users, compiled once. XPath has no regular expressions here: EXSLT's are not RE2."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jmespath as jmes
from cssselect import SelectorError
from lxml import etree
from parsel.csstranslator import HTMLTranslator

_LONGEST = 2_000  # characters
_KEPT = 4096  # compiled selectors
_translator = HTMLTranslator()


def _check_length(text: str) -> None:
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters, but {_LONGEST} at most are taken")


@lru_cache(maxsize=_KEPT)
def css(text: str) -> Any:
    """As `xpath`. Raises ValueError."""
    _check_length(text)
    try:
        return xpath(_translator.css_to_xpath(text))
    except (SelectorError, RecursionError) as error:
        raise ValueError(f"{text!r} is no CSS selector: {error}") from None


@lru_cache(maxsize=_KEPT)
def xpath(text: str) -> Any:
    """What gives the elements, texts or value for an element. Raises ValueError."""
    try:
        found = etree.XPath(text, regexp=False, smart_strings=False)
        found(etree.Element("html"))  # a function that does not exist is found here alone
    except (etree.XPathError, RecursionError) as error:
        raise ValueError(f"{text!r} is no XPath: {error}") from None
    return found


@lru_cache(maxsize=_KEPT)
def jmespath(text: str) -> Any:
    """What gives the value for JSON. Raises ValueError."""
    _check_length(text)
    try:
        return jmes.compile(text)
    except (jmes.exceptions.JMESPathError, RecursionError) as error:
        raise ValueError(f"{text!r} is no JMESPath: {str(error).splitlines()[0]}") from None
