"""`scrapy task start` and `set`: declare a task, and change what was declared."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from site_spider import runtime
from site_spider.commands.site_command import EXIT_FAILED
from site_spider.commands.task_verbs import Call, preview
from site_spider.service.config import check_ends_are_told, guard_of, spill_keys
from site_spider.tasks import webhook
from site_spider.tasks.control_log import Endings, read_endings, written
from site_spider.tasks.desk import TaskFacts, TaskOverview
from site_spider.tasks.ending import Attempts, TaskEnding
from site_spider.tasks.ends import attempts_of
from site_spider.tasks.follower import TopicView
from site_spider.tasks.record import MAX_RECORD_BYTES, BadTask, Task, anew, declared, moment_or_span, span


def _checked(read: Callable[[object], str]) -> Callable[[str], str]:
    """As a type of argparse, which names the option."""

    def text_of(text: str) -> str:
        try:
            return read(text)
        except BadTask as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return text_of


# option -> field, what it takes, help
_OPTIONS: Mapping[str, tuple[str, Any, str, str]] = {
    "--weight": ("weight", float, "N", "its share beside other tasks (default: 1)"),
    "--max-pages": ("max_pages", int, "N", "pages of the task; then it is paused"),
    "--max-pages-host": ("max_pages_host", int, "N", "pages of one host; then its links are filtered"),
    "--max-bytes": ("max_bytes", int, "N", "bytes of its pages; then it is paused"),
    "--max-time": (
        "max_time",
        _checked(span),
        "T",
        "90s, 15m, 2h or 7d from its first seed; then it is paused",
    ),
    "--depth": ("depth", int, "N", "hops from the seed (default: DEPTH_LIMIT)"),
    "--scope": ("scope", str, "S", "host, domain or any (default: SITE_LINK_SCOPE)"),
    "--rate": ("rate", str, "R", "pages of all processes together, such as 50/s or 300/m"),
    "--expires": (
        "expires",
        _checked(moment_or_span),
        "T",
        "90s, 2h, 7d or a moment in ISO 8601; then it is cancelled",
    ),
    "--source": ("source", str, "NAME", "the source of its seeds, if they name none"),
    "--webhook": ("webhook", str, "URL", "is told of its end"),
}


class Start:
    """Declares a task, once."""

    usage = "start ID [--file FILE] [options]"
    most_words = 0

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As in Verb."""
        parser.add_argument("--file", metavar="FILE", help="start: fields of the task as YAML or JSON")
        for option, (name, kind, metavar, text) in _OPTIONS.items():
            parser.add_argument(option, dest=name, type=kind, metavar=metavar, help=f"start: {text}")
        for name, text in (
            ("allow", "links are followed only if one"),
            ("deny", "nothing is fetched if one"),
        ):
            parser.add_argument(
                f"--{name}",
                metavar="RE",
                action="append",
                help=f"start: {text} is found in the URL; may be repeated",
            )

    def work(self, call: Call) -> None:
        """As in Verb."""
        fields, facts = _fields(call.opts), call.facts()
        task = declared(call.task_id, fields, _now(call, "expires" in fields))

        def change(before: Task | None) -> Task:
            if before is None:
                return task
            if before != facts.declared or not facts.is_over:
                raise BadTask(f"{call.task_id!r} is declared already; change it with: scrapy task set")
            return anew(task, before)

        task = call.desk.order(call.task_id, change)
        call.desk.make_known(call.task_id)
        _say_unsigned(call, task)
        call.answer(f"task {call.task_id} is declared", state=task.state)


class Set:
    """Changes fields."""

    usage = "set ID NAME=VALUE ... [--dry-run]"
    most_words = 50

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As in Verb."""
        parser.add_argument(
            "--dry-run", action="store_true", help="set: say what of the waiting seeds it would filter"
        )

    def work(self, call: Call) -> None:
        """As in Verb."""
        if call.opts.dry_run:
            preview(call, call.orders.changing(call.words)(call.desk.board.task(call.task_id)))
            return
        ordered = call.orders.change(call.words)
        if ordered.task is not None:
            _say_unsigned(call, ordered.task)
        call.answer(ordered.said, returned=ordered.returned)


def _say_unsigned(call: Call, task: Task) -> None:
    if task.webhook is not None and not spill_keys(call.command.options):
        call.command.complain(
            f"the webhook of {call.task_id} is not signed, because SITE_SPILL_KEY is empty: its receiver "
            "cannot know that it comes from this crawl"
        )


def _fields(opts: argparse.Namespace) -> dict[str, Any]:
    names = [name for name, *_ in _OPTIONS.values()]
    given = {name: getattr(opts, name) for name in (*names, "allow", "deny")}
    return {
        **(_read(Path(opts.file)) if opts.file else {}),
        **{name: value for name, value in given.items() if value is not None},
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_RECORD_BYTES + 1)
        if len(raw) > MAX_RECORD_BYTES:
            raise BadTask(f"{path} is larger than {MAX_RECORD_BYTES} bytes")
        fields = yaml.load(raw, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise BadTask(f"{path} cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadTask(f"{path} is no YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(fields, dict) or not all(isinstance(name, str) for name in fields):
        raise BadTask(f"{path} must be a mapping with fields of a task, such as weight")
    return fields


class _Loader(yaml.SafeLoader):
    """Without aliases, which could repeat a value without end; dates stay texts."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as its base declares it
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As in yaml.Composer."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not taken")
        return super().compose_node(parent, index)


def _now(call: Call, is_limit: bool) -> datetime:
    return call.desk.now() if is_limit else runtime.now(UTC)


# --- end -------------------------------------------------------------------------------------------------
# `scrapy task close`, `wait` and `notify`.


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
        endings = Endings(call.task_id)
        with closing(TopicView(desk.log, desk.topics.control, endings.take)) as view:
            view.read_on()
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
                view.taken(view.reader.poll(_POLL_SECONDS))
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
