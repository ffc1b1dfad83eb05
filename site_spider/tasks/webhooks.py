"""Sends webhooks of events, again and again until one is taken, and keeps each attempt in the control log.

The record in the topic of events is the truth; a webhook is a copy of it. The process that has the first
partition of the seed topic sends: twelve attempts, the pauses grow from a minute to 17 hours. `task_id`
and `generation` name an event, so a receiver that gets one twice knows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from math import inf
from urllib.parse import urlsplit

from site_spider import runtime, signed_post
from site_spider.engine.background import apart
from site_spider.tasks.ending import Attempts, EndTold, TaskEnding, WebhookAttempt
from site_spider.tasks.tracker import Group, GroupWork

logger = logging.getLogger(__name__)

_MOST_POSTS = 64  # at once
_MOST_TO_ONE = 8  # receiver: if it hangs, each takes 15 s, and others do not wait for it
_MOST_ATTEMPTS = 12
_FIRST_PAUSE_SECONDS = 60.0


class Webhooks(GroupWork):
    """Sends webhooks."""

    every_seconds = 2.0

    def __init__(self, group: Group, secret: bytes, may_reach: signed_post.MayReach) -> None:
        super().__init__(group)
        self._secret, self._may_reach = secret, may_reach
        self._posts: Counter[str] = Counter()  # by receiver
        self._places = asyncio.Semaphore(_MOST_POSTS)  # taken in turns: many receivers may hang

    @property
    def is_sending(self) -> bool:
        """Whether one is under way, or is to be sent if a task has one whose end was told just now."""
        return self._has_first() and (self.is_at_work or bool(self._control.endings.told))

    def look(self) -> None:
        now = runtime.time()
        if not self._has_first():
            return
        self._heard_of |= self._control.endings.told
        self._control.endings.told.clear()
        due: defaultdict[str, list[str]] = defaultdict(list)
        for task_id in self._heard_of - self._busy:
            task, ending = self._board.task(task_id), self._control.get(task_id)
            if not (task and task.webhook and ending) or (at := due_at(ending, now)) is None:
                self._heard_of.discard(task_id)
            elif now >= at:
                due[urlsplit(task.webhook).netloc].append(task_id)
        for receiver, task_ids in due.items():
            free = min(_MOST_TO_ONE - self._posts[receiver], len(task_ids))
            for number in range(free):
                share = task_ids[number::free]
                self._busy.update(share)
                self._posts[receiver] += 1
                self._background.start(self._send_all(receiver, share), "webhooks")

    async def _send_all(self, receiver: str, task_ids: Sequence[str]) -> None:
        for task_id in task_ids:
            async with self._places:
                await self._send_one(task_id)
        self._posts -= Counter([receiver])

    async def _send_one(self, task_id: str) -> None:
        task, ending = self._board.task(task_id), self._control.get(task_id)
        ended = ending.ended if ending and due_at(ending, 0.0) is not None else None  # sent meanwhile, or news
        if not (self._has_first() and task and task.webhook and ending and ended):
            self._busy.discard(task_id)
            return
        with self._control.guarded(task_id):
            attempts = await apart(partial(tried, task.webhook, ended, ending.made, self._secret, self._may_reach))
            if error := attempts.made[-1].error:
                logger.warning("The webhook of task %s was not taken: %s", task_id, error)
            self._control.write(task_id, attempts, lambda _: self._when_settled(task_id))


def tried(
    url: str, ended: EndTold, before: tuple[WebhookAttempt, ...], secret: bytes, may_reach: signed_post.MayReach
) -> Attempts:
    """Sends the webhook of an end; this attempt is the last. Blocks."""
    attempt = WebhookAttempt(int(runtime.time() * 1000), *signed_post.post(url, ended.event, secret, may_reach))
    return Attempts(ended.generation, (*before, attempt)[-_MOST_ATTEMPTS:])


def is_settled(ending: TaskEnding) -> bool:
    """Whether the webhook of the last end was taken, or is not tried any more."""
    made = ending.made
    return len(made) >= _MOST_ATTEMPTS or any(not attempt.error for attempt in made)


def due_at(ending: TaskEnding, now: float) -> float | None:
    """The Unix time at which the webhook of the last end is to be tried; None: not before there is news."""
    ended, made = ending.ended, ending.made
    if ended is None or ending.noticed < ended.generation or is_settled(ending):
        return None
    tried_at = made[-1].at_ms / 1000 if made else inf  # by a clock that may have been ahead, for hours
    return now if tried_at > now else tried_at + _FIRST_PAUSE_SECONDS * 2.0 ** (len(made) - 1)
