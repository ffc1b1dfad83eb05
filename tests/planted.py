"""Faults that are planted into the code for a while, as a change of a function's text."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Mutant = tuple[Any, str, str]  # a function or property, a part of its text, and what stands there instead


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """With this fault, for whoever has the function by now."""
    where, right, wrong = mutant
    function = getattr(where, "fget", where)
    source = inspect.getsource(function)
    assert right in source, f"{right!r} is not in {function.__qualname__}"
    made: dict[str, Any] = {}
    exec(textwrap.dedent(source.replace(right, wrong, 1)), function.__globals__, made)
    code = function.__code__
    function.__code__ = getattr(made[function.__name__], "fget", made[function.__name__]).__code__
    try:
        yield
    finally:
        function.__code__ = code
