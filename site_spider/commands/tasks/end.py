"""`scrapy task close`, `wait` and `notify`."""

from __future__ import annotations

import argparse
import time
from contextlib import closing

from site_spider.commands.site_command import EXIT_FAILED
from site_spider.commands.tasks.verb import Call
from site_spider.service.config import check_ends_are_told, spill_keys
from site_spider.service.webhook_guard import guard_of
from site_spider.tasks import webhook
from site_spider.tasks.closing import TaskProducer, read_endings
from site_spider.tasks.control_log import Endings, written
from site_spider.tasks.desk import TaskDesk
from site_spider.tasks.ending import Attempts, TaskEnding
from site_spider.tasks.notices import attempts_of
from site_spider.tasks.record import BadTask

EXIT_STOPPED = 3  # cancelled or expired
EXIT_SPENT = 4  # its budget
_POLL_SECONDS = 0.2
_LOOK_SECONDS = 2.0  # between looks at the record of the task
_BUDGETS = ("page_budget", "byte_budget", "time_budget")


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
        desk, task_id = call.desk, call.task_id
        ending = read_endings(desk.log, desk.topics).get(task_id)
        if ending is not None and ending.is_over and ending.is_told and not call.opts.again:
            call.answer(
                f"task {task_id} has ended already; --again begins its next generation",
                closed=True,
                generation=ending.generation,
            )
            return
        with closing(desk.log.producer()) as producer:
            closer = TaskProducer(desk.log, producer, desk.topics, task_id)
            closer.close_for_all(lambda: _has_parked(desk, task_id))
        call.answer(f"task {task_id} is closed: its end comes when all its seeds are complete", closed=True)


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
            endings = Endings()
            while not reader.is_at_end:
                endings.take_all(reader.poll(_POLL_SECONDS))
            if endings.get(call.task_id) is None and desk.board.task(call.task_id) is None:
                raise BadTask(
                    f"{call.task_id!r} is not known: it was neither declared (scrapy task start) nor closed "
                    "(scrapy task close, scrapy seed --task-id ID --close)"
                )
            look_at = 0.0
            while not _is_told(ending := endings.get(call.task_id)):
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + _LOOK_SECONDS
                    desk.read()
                    if self._is_spent(call):
                        return
                endings.take_all(reader.poll(_POLL_SECONDS))
        assert ending is not None
        assert ending.ended is not None
        self._tell(call, dict(ending.ended.event))

    def _is_spent(self, call: Call) -> bool:
        phase = call.desk.board.phase(call.task_id, time.time())
        if phase.name != "paused" or phase.reason not in _BUDGETS:
            return False
        call.answer(f"task {call.task_id} is paused: {phase.reason}", state=phase.name, reason=phase.reason)
        call.command.end_with(EXIT_SPENT)
        return True

    def _tell(self, call: Call, event: dict[str, object]) -> None:
        event.pop("task_id", None)
        call.answer(f"task {call.task_id}: {event.get('event')}; {_counts(event)}", **event)
        if event.get("event") != "done":
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
        task = desk.board.task(call.task_id)
        ending = read_endings(desk.log, desk.topics).get(call.task_id)
        if ending is None or ending.ended is None:
            raise BadTask(f"{call.task_id!r} has not ended, so there is nothing to send")
        if task is None or task.webhook is None:
            raise BadTask(f"{call.task_id!r} has no webhook; say: scrapy task set {call.task_id} webhook=URL")
        sent = webhook.notice(ending.ended.event, secret, int(time.time()))
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


def _has_parked(desk: TaskDesk, task_id: str) -> bool:
    desk.read()
    return desk.board.has_parked(task_id)


def _is_told(ending: TaskEnding | None) -> bool:
    return ending is not None and ending.is_told and ending.noticed >= ending.generation


def _counts(event: dict[str, object]) -> str:
    seeds = event.get("seeds")
    said = seeds.items() if isinstance(seeds, dict) else ()
    parts = ", ".join(f"{count} {name}" for name, count in said if name != "total")
    return f"seeds: {parts or 'none'}; pages: {event.get('pages')}"
