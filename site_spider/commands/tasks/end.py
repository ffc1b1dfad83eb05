"""`scrapy task close`, `wait` and `notify`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import closing

from site_spider import runtime
from site_spider.commands.site_command import EXIT_FAILED
from site_spider.commands.tasks.verb import Call
from site_spider.service.config import check_ends_are_told, spill_keys
from site_spider.service.webhook_guard import guard_of
from site_spider.tasks import webhook
from site_spider.tasks.control_log import Endings, read_endings, written
from site_spider.tasks.desk import TaskFacts, TaskOverview
from site_spider.tasks.ending import Attempts, TaskEnding
from site_spider.tasks.ends import attempts_of
from site_spider.tasks.record import BadTask

EXIT_STOPPED = 3  # cancelled or expired
EXIT_SPENT = 4  # its budget
_POLL_SECONDS = 0.2
_LOOK_SECONDS = 2.0  # between looks at the record of the task


class Close:
    """No more seeds are produced."""

    usage = "close ID"
    most_words = 0

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As in Verb."""
        parser.add_argument(
            "--again", action="store_true", help="close: a task that has ended, for seeds produced since"
        )

    def work(self, call: Call) -> None:
        """As in Verb."""
        check_ends_are_told(call.command.options)
        facts = call.known()
        ordered = call.orders.close(again=call.opts.again)
        if facts.is_ended and not call.opts.again:
            call.answer(ordered.said, closed=True, generation=facts.generation)
        else:
            call.answer(ordered.said, closed=True)


class Wait:
    """Ends with the task."""

    usage = "wait ID"
    most_words = 0

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As in Verb: none."""

    def work(self, call: Call) -> None:
        """As in Verb. Exit code 0; 3 when cancelled or expired; 4 when a budget was spent."""
        desk = call.desk
        with closing(desk.log.reader(desk.topics.control, compacted=True)) as reader:
            endings = Endings(call.task_id)
            while not reader.is_at_end:
                endings.take_all(reader.poll(_POLL_SECONDS))
            call.known()
            look_at = 0.0
            while not _is_told(ending := endings.get(call.task_id)):
                if runtime.monotonic() >= look_at:
                    look_at = runtime.monotonic() + _LOOK_SECONDS
                    desk.read()
                    facts = TaskOverview(desk.board, endings).of(call.task_id)
                    if facts.is_spent:
                        self._tell_spent(call, facts)
                        return
                endings.take_all(reader.poll(_POLL_SECONDS))
        assert ending is not None
        assert ending.ended is not None
        self._tell(call, TaskOverview(desk.board, endings).of(call.task_id), ending.ended.event)

    def _tell_spent(self, call: Call, facts: TaskFacts) -> None:
        call.answer(
            f"task {call.task_id} is paused: {facts.reason}; {facts.said()}",
            state=facts.state,
            reason=facts.reason,
            **facts.numbers(),
        )
        call.command.end_with(EXIT_SPENT)

    def _tell(self, call: Call, facts: TaskFacts, event: Mapping[str, object]) -> None:
        said = {name: value for name, value in event.items() if name != "task_id"}
        call.answer(f"task {call.task_id}: {facts.state}; {facts.said()}", **said)
        if facts.state != "done":
            call.command.end_with(EXIT_STOPPED)


class Notify:
    """Sends the webhook of the end once more."""

    usage = "notify ID"
    most_words = 0

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As in Verb."""
        parser.add_argument(
            "--secret",
            action="store_true",
            help="notify: print what receivers verify signatures with, and end",
        )

    def work(self, call: Call) -> None:
        """As in Verb. Exit code 1 when it is not taken."""
        desk, settings = call.desk, call.command.options
        secret = webhook.secret_of(spill_keys(settings))
        if call.opts.secret:
            call.answer(secret.decode() or "none: SITE_SPILL_KEY is empty", secret=secret.decode())
            return
        task = call.known(may_be_new=False).declared
        ending = read_endings(desk.log, desk.topics).get(call.task_id)
        if ending is None or ending.ended is None:
            raise BadTask(f"{call.task_id!r} has not ended, so there is nothing to send")
        if task is None or task.webhook is None:
            raise BadTask(f"{call.task_id!r} has no webhook; say: scrapy task set {call.task_id} webhook=URL")
        sent = webhook.notice(ending.ended.event, secret, int(runtime.time()))
        attempt = webhook.post(task.webhook, sent, guard_of(settings))
        generation = ending.ended.generation
        made = (*attempts_of(ending, generation), attempt)[-webhook.MOST_ATTEMPTS :]
        record = written(call.task_id, Attempts(generation, made))
        with closing(desk.log.producer()) as producer:
            producer.send(desk.topics.control, *record).result()
        said = [{"at_ms": each.at_ms, "status": each.status, "error": each.error} for each in made]
        call.answer(
            f"task {call.task_id}: {attempt.error or 'the webhook was taken'}; attempts: {len(made)}",
            taken=not attempt.error,
            attempts=said,
        )
        if attempt.error:
            call.command.end_with(EXIT_FAILED)


def _is_told(ending: TaskEnding | None) -> bool:
    return ending is not None and ending.is_told and ending.noticed >= ending.generation
