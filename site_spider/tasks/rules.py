"""What the rules of a task say of a URL."""

from __future__ import annotations

from site_spider.tasks.pattern_set import PatternSet
from site_spider.tasks.record import Task


class TaskRules:
    """Of one task, its patterns compiled."""

    __slots__ = ("_allow", "_deny", "depth", "scope", "task")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.depth = task.depth
        self.scope = task.scope
        self._allow = PatternSet(task.allow)
        self._deny = PatternSet(task.deny)

    def takes_seed(self, url: str) -> bool:
        """Whether a seed may be fetched: it was asked for, so `allow` is not for it."""
        return not (self._deny and self._deny.matches(url))

    def takes_link(self, url: str, depth: int) -> bool:
        """Whether a link may be followed."""
        if self.depth is not None and depth > self.depth:
            return False
        if self._allow and not self._allow.matches(url):
            return False
        return self.takes_seed(url)
