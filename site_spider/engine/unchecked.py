"""Methods of Scrapy without their check for a `spider` argument."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from scrapy.utils.decorators import _warn_spider_arg

# Scrapy wraps most methods of its middlewares in a function that warns of the argument: 15 calls a page
_CHECK = _warn_spider_arg(lambda: None).__code__  # the same for all that it wraps


def unchecked(method: Callable[..., Any]) -> Callable[..., Any]:
    """What is behind the check; any other method as it is. To be called without a `spider` argument."""
    function = getattr(method, "__func__", None)
    if getattr(function, "__code__", None) is not _CHECK:
        return method
    return MethodType(function.__wrapped__, method.__self__)  # type: ignore[union-attr, attr-defined]
