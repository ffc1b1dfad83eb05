"""The frames that an error holds: those that are shown, and freeing them after it was handled."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Final

import scrapy

_MOST_CAUSES = 10  # of an error
_PACKAGE: Final = Path(__file__).parents[1]
# whatever calls a callback: the engine's way to it is the same for all
_CALLERS: Final = (
    f"{Path(scrapy.__file__).parent}/",
    f"{_PACKAGE}/engine/",
    f"{_PACKAGE}/results/callbacks.py",
)


def without_callers(error: BaseException | None) -> TracebackType | None:
    """The traceback of an error of a callback, from the spider on; whole when that is not in it."""
    if error is None:
        return None
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_CALLERS):
        found = found.tb_next
    if found is not None:
        error.__traceback__ = found
    return error.__traceback__


def forget_frames(error: BaseException | None) -> None:
    """For an error and its causes.

    Frames hold the error in turn; freeing thousands of such circles at once holds up the event loop.
    """
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
