"""Frees the frames that an error holds after it was handled."""

from __future__ import annotations

_MOST_CAUSES = 10  # of an error


def forget_frames(error: BaseException | None) -> None:
    """For an error and its causes.

    Frames hold the error in turn; freeing thousands of such circles at once holds up the event loop.
    """
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
