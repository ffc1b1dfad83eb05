"""Sends webhooks of events, again and again until one is taken, and keeps each attempt in the control log.

The record in the topic of events is the truth; a webhook is a copy of it. The process that has the first
partition of the seed topic sends: twelve attempts, the pauses grow from a minute to 32 hours. `task_id` and
`generation` name an event, so a receiver that gets one twice knows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from site_spider import runtime
from site_spider.engine.background import Background
from site_spider.tasks import webhook
from site_spider.tasks.board import Board
from site_spider.tasks.control import Control
from site_spider.tasks.ending import Attempts, EndTold, TaskEnding, WebhookAttempt

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
_MOST_AT_ONCE = 2


class Notices:
    """On the event loop's thread only."""

    def __init__(
        self,
        board: Board,
        control: Control,
        secret: bytes,
        may_reach: webhook.MayReach,
        has_first: Callable[[], bool],
        background: Background,
    ) -> None:
        self._board = board
        self._control = control
        self._secret = secret
        self._may_reach = may_reach
        self._has_first = has_first  # the first partition of the seed topic
        self._background = background
        self._busy: set[str] = set()
        self._look_at = 0.0

    def look(self) -> None:
        """To be called now and then."""
        now = runtime.time()
        if now < self._look_at or not self._has_first():
            return
        self._look_at = now + _LOOK_SECONDS
        for task in self._board:
            ending = self._control.get(task.task_id) if task.webhook else None
            if ending is None or task.task_id in self._busy or len(self._busy) >= _MOST_AT_ONCE:
                continue
            if (ended := due(ending, now)) is not None:
                self._busy.add(task.task_id)
                assert task.webhook is not None
                self._background.start(self._send(task.task_id, task.webhook, ending, ended), "webhook")

    async def _send(self, task_id: str, url: str, ending: TaskEnding, ended: EndTold) -> None:
        with self._control.guarded(task_id):
            await self._try(task_id, url, ending, ended)

    async def _try(self, task_id: str, url: str, ending: TaskEnding, ended: EndTold) -> None:
        sent = webhook.notice(ended.event, self._secret, int(runtime.time()))
        attempt = await asyncio.to_thread(webhook.post, url, sent, self._may_reach)
        if attempt.error:
            logger.warning("The webhook of task %s was not taken: %s", task_id, attempt.error)
        attempts = (*attempts_of(ending, ended.generation), attempt)
        fact = Attempts(ended.generation, attempts[-webhook.MOST_ATTEMPTS :])
        self._control.write(task_id, fact, lambda _: self._when_settled(task_id))

    def _when_settled(self, task_id: str) -> None:
        self._control.when_read(lambda: self._busy.discard(task_id))


def attempts_of(ending: TaskEnding, generation: int) -> tuple[WebhookAttempt, ...]:
    """Those that were made for an event."""
    made = ending.attempts
    return made.made if made is not None and made.generation == generation else ()


def is_settled(ending: TaskEnding) -> bool:
    """Whether the webhook of the last end was taken, or is not tried any more."""
    made = () if ending.ended is None else attempts_of(ending, ending.ended.generation)
    return len(made) >= webhook.MOST_ATTEMPTS or any(not attempt.error for attempt in made)


def due(ending: TaskEnding, now: float) -> EndTold | None:
    """The end whose webhook is to be tried at a Unix time."""
    ended = ending.ended
    if ended is None or ending.noticed < ended.generation:
        return None
    made = attempts_of(ending, ended.generation)
    if is_settled(ending):
        return None
    if made and now < made[-1].at_ms / 1000 + webhook.pause_seconds(len(made)):
        return None
    return ended
