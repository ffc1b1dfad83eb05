"""How long a commit has waited for an answer of the seed log.

When a group does not hear of a member for a session's length, others take its partitions over, and the
member cannot know. So it begins nothing new from shortly before then: hosts would be asked by two
processes, and what it fetched could not be committed.
"""

from __future__ import annotations

import logging

from site_spider import runtime

logger = logging.getLogger(__name__)

_SAID_SECONDS = 3.0
_FORGOTTEN_SECONDS = 60.0
_SHARE = 0.8  # of the session; what begins at its end would still run when others own the partition


class Silence:
    """The intake's thread says what happens; any thread may ask."""

    def __init__(self) -> None:
        self._limit_seconds = float("inf")
        self._since: float | None = None
        self._is_said = False

    def joined(self, session_seconds: float) -> None:
        """The process is a member from now on."""
        self._limit_seconds = session_seconds * _SHARE

    @property
    def is_long(self) -> bool:
        """Whether others may own our partitions soon, or own them already."""
        return self.seconds >= self._limit_seconds

    @property
    def seconds(self) -> float:
        """Since the log was asked, without an answer."""
        since = self._since
        return 0.0 if since is None else runtime.monotonic() - since

    def asked(self) -> None:
        """A commit was begun, for the first time or again."""
        if self._since is None:
            self._since = runtime.monotonic()

    def look(self) -> None:
        """Say that the log is silent, once."""
        if not self._is_said and self.seconds >= min(_SAID_SECONDS, self._limit_seconds):
            self._is_said = True
            logger.warning(
                "The seed log has not answered a commit for %.0f s. After %.0f s nothing new begins until it "
                "answers, because other members may own the partitions then",
                self.seconds,
                self._limit_seconds,
            )

    def look_without_partitions(self) -> None:
        """Nothing is asked any more that could be answered: others have the partitions, which is no news."""
        if self.seconds > _FORGOTTEN_SECONDS:
            self._since = None
            self._is_said = False

    def over(self) -> None:
        """It has answered, or nothing waits for an answer any more."""
        if self._is_said:
            logger.info("The seed log answers again after %.1f s", self.seconds)
        self._since = None
        self._is_said = False
