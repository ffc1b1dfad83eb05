"""`scrapy task pause`, `resume`, `cancel` and `delete`."""

from __future__ import annotations

import argparse

from site_spider import runtime
from site_spider.commands.tasks.verb import Call
from site_spider.tasks.desk import TaskFacts
from site_spider.tasks.record import BadTask

_SETTLE_SECONDS = 2.0  # without news, then the totals are printed
_LONGEST_SECONDS = 15.0
_LOOK_SECONDS = 0.2


class _StateVerb:
    """A verb without words of its own."""

    most_words = 0

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As in Verb: none."""


class PauseTask(_StateVerb):
    """Nothing of the task begins any more."""

    usage = "pause ID"

    def work(self, call: Call) -> None:
        """As in Verb."""
        ordered = call.orders.pause()
        call.answer(ordered.said, state="paused")


class Resume(_StateVerb):
    """What was parked comes back."""

    usage = "resume ID"

    def work(self, call: Call) -> None:
        """As in Verb."""
        ordered = call.orders.resume()
        call.answer(
            ordered.said,
            state=ordered.phase.name,
            reason=ordered.phase.reason,
            returned=ordered.returned,
        )


class Cancel(_StateVerb):
    """What has not begun ends."""

    usage = "cancel ID"

    def work(self, call: Call) -> None:
        """As in Verb: prints the totals when they change no more."""
        back = call.orders.cancel().returned
        facts = _settled(call)
        call.answer(
            f"task {call.task_id} is cancelled; {facts.said()}; links cancelled: {facts.links_cancelled}; "
            f"{back} parked messages put back",
            state="cancelled",
            returned=back,
            seeds=dict(facts.seeds),
            moved=dict(facts.moved),
            partial=facts.is_partial,
            links_cancelled=facts.links_cancelled,
            pages=facts.pages,
            bytes=facts.bytes,
        )


class Delete(_StateVerb):
    """Nothing is known of the task any more."""

    usage = "delete ID"

    def work(self, call: Call) -> None:
        """As in Verb. Results stay; seeds that wait have the settings of the crawl."""
        facts = call.known(may_be_new=False)
        if facts.parked:
            raise BadTask(
                f"{facts.parked} messages of {call.task_id!r} are parked; resume or cancel it first"
            )
        if not facts.is_ended and (facts.is_closed or facts.is_over):
            raise BadTask(f"{call.task_id!r} is about to end; say first: scrapy task wait {call.task_id}")
        call.desk.forget(call.task_id)
        call.answer(f"task {call.task_id} is deleted", deleted=True)


def _settled(call: Call) -> TaskFacts:
    """What is known, once the processes have told nothing new for a while."""
    deadline = runtime.monotonic() + _LONGEST_SECONDS
    last, since = call.facts(), runtime.monotonic()
    while runtime.monotonic() < min(deadline, since + _SETTLE_SECONDS) and not last.is_ended:
        runtime.sleep(_LOOK_SECONDS)
        call.desk.read()
        if (now := call.facts()) != last:
            last, since = now, runtime.monotonic()
    return last
