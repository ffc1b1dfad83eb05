"""`scrapy task`: declares tasks, shows them, and controls them while they run."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from site_spider import options, runtime, signed_post
from site_spider.commands.output import Column, print_counted, print_json, print_table, show
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand, checked
from site_spider.errors import LogUnavailable, SeedError
from site_spider.observe.progress import in_parked_topic, in_seed_topic
from site_spider.outage import Outage
from site_spider.seed.fields import identifier
from site_spider.seed.seed import Seed
from site_spider.seed.topics import CrawlTopics
from site_spider.service import config as parts
from site_spider.service.config import EXACTLY_ONCE, check_ends_are_told, guard_of, spill_keys
from site_spider.sources.library import SourceFolder, parse, read_with
from site_spider.tasks.control_log import Endings, read_endings, written
from site_spider.tasks.declaration import BadTask, Task, TaskRules, anew, declared, moment_or_span, span
from site_spider.tasks.ending import TaskEnding
from site_spider.tasks.follower import TopicView
from site_spider.tasks.orders import TaskDesk, TaskFacts, TaskOrders, TaskOverview
from site_spider.tasks.webhooks import tried

logger = logging.getLogger(__name__)

EXIT_STOPPED = 3  # cancelled or expired
EXIT_SPENT = 4  # its budget
_SETTLE_SECONDS = 2.0  # without news, then the totals of a cancelled task are printed
_LONGEST_SECONDS = 15.0
_POLL_SECONDS = 0.2
_LOOK_SECONDS = 2.0  # between looks at the record of the task
_SHOWN = 10  # URLs that a change of rules would filter
_LIST = (Column("TASK", shrinks=True), Column("STATE"), Column("REASON", optional=True),
         Column("WEIGHT", right=True), Column("PAGES", right=True), Column("SEEDS", right=True),
         Column("PARKED", right=True))  # fmt: skip
_ABOUT_TO_END = "{0!r} is about to end; say first: scrapy task wait {0}"
_NOT_TOLD = "the end of {0!r} is not told yet; say first: scrapy task wait {0}"
_FIELDS = (Column("FIELD"), Column("VALUE", shrinks=True))


def _boolean(text: str) -> object:
    return {"true": True, "false": False}.get(text, text)  # which the model refuses, with a reason


# option -> field, what it takes, help
_OPTIONS: Mapping[str, tuple[str, Any, str, str]] = {
    "--weight": ("weight", float, "N", "its share beside other tasks (default: 1)"),
    "--max-pages": ("max_pages", int, "N", "pages of the task; then it is paused"),
    "--max-pages-host": ("max_pages_host", int, "N", "pages of one host; then its links are filtered"),
    "--max-bytes": ("max_bytes", int, "N", "bytes of its pages; then it is paused"),
    "--max-time": ("max_time", checked(span), "T", "90s, 15m, 2h or 7d from its first seed; then it is paused"),
    "--depth": ("depth", int, "N", "hops from the seed (default: DEPTH_LIMIT)"),
    "--scope": ("scope", str, "S", "host, domain or any (default: SITE_LINK_SCOPE)"),
    "--rate": ("rate", str, "R", "pages of all processes together, such as 50/s or 300/m"),
    "--expires": ("expires", checked(moment_or_span), "T", "90s, 2h, 7d or a moment in ISO 8601; then it is cancelled"),
    "--source": ("source", str, "NAME", "the source of its seeds, if they name none"),
    "--drop-params": ("drop_params", str, "A,B", "links that differ in these are one (default: SITE_DROP_PARAMS)"),
    "--follow-duplicates": ("follow_duplicates", _boolean, "true|false", "false: no links of pages with duplicate_of"),
    "--webhook": ("webhook", str, "URL", "is told of its end"),
}
_PATTERNS = {"allow": "links are followed only if one", "deny": "nothing is fetched if one"}
_FLAGS = {
    "--dry-run": ("set", "say what of the waiting seeds it would filter"),
    "--again": ("close", "a task that has ended, for seeds produced since"),
    "--secret": ("notify", "print what receivers verify signatures with, and end"),
}
_ONLY_FOR = {
    **dict.fromkeys(("file", *(name for name, *_ in _OPTIONS.values()), *_PATTERNS), "start"),
    **{option.strip("-").replace("-", "_"): verb for option, (verb, _) in _FLAGS.items()},
}


class Command(SiteCommand):
    """Writes a record of the task topic, which every process follows."""

    summary = "Declare, show and control tasks"
    max_arguments = 60
    description = (
        "Declares, shows and controls tasks. A task is all seeds with one meta.task_id. All processes of the "
        "crawl follow within two seconds. close: no more seeds of the task are produced, so it ends when all "
        "are complete. wait: returns at the end and prints its counts; the exit code is 0, 3 when the task "
        "was cancelled or has expired, 4 when a budget is spent. notify: sends the webhook of an end again. "
        "delete: removes all records of a task, and no results."
    )
    examples = """
        scrapy task start spring --weight 5 --max-pages 100000 --deny '/calendar/'
        scrapy task list
        scrapy task show spring --json
        scrapy task set spring weight=1 max_pages=200000
        scrapy task set spring deny=/calendar/ --dry-run
        scrapy task pause spring
        scrapy task resume spring
        scrapy task cancel spring
        scrapy task close spring; scrapy task wait spring && echo "all pages are there"
        scrapy task close spring --again          # seeds were produced after its end
        scrapy task notify spring                 # the receiver of the webhook was away
        scrapy task notify spring --secret        # what the receiver verifies signatures with
        scrapy task delete spring
    """
    desk: TaskDesk
    opts: argparse.Namespace
    task_id = ""  # of a verb that takes one

    def syntax(self) -> str:
        return f"{'|'.join(VERBS)} [ID] [options]"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")
        parser.add_argument("--new", action="store_true", help="accept an id that nobody knows yet")
        parser.add_argument("--file", metavar="FILE", type="file", help="start: fields of the task as YAML or JSON")
        for option, (name, kind, metavar, text) in _OPTIONS.items():
            parser.add_argument(option, dest=name, type=kind, metavar=metavar, help=f"start: {text}")
        for name, text in _PATTERNS.items():
            said = f"start: {text} is found in the URL; may be repeated"
            parser.add_argument(f"--{name}", metavar="RE", action="append", help=said)
        for option, (verb, text) in _FLAGS.items():
            parser.add_argument(option, action="store_true", default=None, help=f"{verb}: {text}")

    def work(self, opts: argparse.Namespace) -> None:
        name, *words = opts.args or [""]
        verb = VERBS.get(name)
        if verb is None:
            self.refuse(f"unknown verb {name!r}: say one of {', '.join(VERBS)}")
        takes_id = " ID" in verb.usage
        if bool(words) < takes_id or len(words) > takes_id + verb.most_words:
            self.refuse(f"say: scrapy task {verb.usage}")
        self.refuse_of_others(name, _ONLY_FOR, opts)
        self.opts = opts
        if takes_id:
            try:
                self.task_id = identifier("the task's id", words[0]) or ""
            except SeedError as error:
                self.refuse(error.reason)
        topics = CrawlTopics.beside(self.options)
        with closing(parts.seed_log(self.options)) as log:
            log.check(parts.CHECK_SECONDS)
            self.desk = TaskDesk(log, topics)
            verb.work(self)

    def _facts(self) -> TaskFacts:
        return self.desk.overview().of(self.task_id)

    @property
    def _tells_ends(self) -> bool:
        return not options.boolean(self.options, EXACTLY_ONCE)

    @property
    def _orders(self) -> TaskOrders:
        return TaskOrders(self.desk, self.task_id, may_be_new=self.opts.new)

    def _answer(self, line: str, **fields: object) -> None:
        """One line for people, or with --json one object for programs."""
        if self.opts.json:
            print_json({"task_id": self.task_id, **fields})
        else:
            show(line)

    def list_all(self) -> None:
        tasks = list(self.desk.overview())
        if self.opts.json:
            for each in tasks:
                print_json(each.document())
            return
        rows = [
            [each.task_id, each.state, each.reason or ("partial" if each.is_partial else None),
             each.weight, each.pages, sum(each.seeds.values()), each.parked]
            for each in tasks
        ]  # fmt: skip
        print_counted(f"Tasks in {self.desk.topics.tasks}", _LIST, rows)

    def show_one(self) -> None:
        found = self._orders.known(may_be_new=False).document()
        if self.opts.json:
            print_json(found)
            return
        said = {name: value for name, value in found.items() if value not in (None, "", [], {})}
        texts = ((name, each if isinstance(each, str) else json.dumps(each, ensure_ascii=False))
                 for name, each in said.items())  # fmt: skip
        print_table(_FIELDS, [*texts])

    def start(self) -> None:
        fields, facts = self._fields(), self._facts()
        now = self.desk.now() if "expires" in fields else runtime.now(UTC)
        make = partial(declared, self.task_id, fields, now)
        task = make() if self.opts.file else self._made(make)

        def change(before: Task | None) -> Task:
            if before is None:
                return task
            if before != facts.declared or not facts.is_over:
                raise BadTask(f"{self.task_id!r} is declared already; change it with: scrapy task set")
            if facts.is_closed and not facts.is_ended:  # nothing would keep the new one open
                raise BadTask(_ABOUT_TO_END.format(self.task_id))
            return anew(task, before)

        task = self.desk.order(self.task_id, change)
        self.desk.make_known(self.task_id)
        self._warn(task)
        self._answer(f"task {self.task_id} is declared", state=task.state)

    def _made(self, make: Callable[[], Task]) -> Task:
        """What was typed is refused with exit code 2."""
        try:
            return make()
        except BadTask as error:
            self.refuse(str(error))

    def _fields(self) -> dict[str, Any]:
        names = [*(name for name, *_ in _OPTIONS.values()), *_PATTERNS]
        given = {name: getattr(self.opts, name) for name in names}
        return {
            **(_read(Path(self.opts.file)) if self.opts.file else {}),
            **{name: value for name, value in given.items() if value is not None},
        }

    def set(self) -> None:
        """Change fields, or with --dry-run say what of the waiting seeds that would filter."""
        words = self.opts.args[2:]
        task = self._made(lambda: self._orders.changing(words)(self.desk.board.task(self.task_id)))
        if self.opts.dry_run:
            self._preview(task)
            return
        ordered = self._orders.change(words)
        if ordered.task is not None:
            self._warn(ordered.task)
        self._answer(ordered.said, returned=ordered.returned)

    def _preview(self, task: Task) -> None:
        topics, rules, waiting, hits = self.desk.topics, TaskRules(task), 0, 0
        examples: list[str] = []
        parked = in_parked_topic(self.desk.log, topics, self.desk.board, self.task_id)
        for seed in chain(self._waiting(), parked):
            waiting += 1
            if not rules.takes(seed):
                hits += 1
                examples += [seed.url] if len(examples) < _SHOWN else []
        where = f"{', '.join(topics.tiers)} and {topics.parked}"
        said = f"would filter {hits} of {waiting} seeds and links that wait in {where}"
        self._answer(said, waiting=waiting, would_filter=hits, examples=examples)
        for url in [] if self.opts.json else examples:
            show(f"  {url}")

    def _warn(self, task: Task) -> None:
        """Warn of what the processes cannot do for the task, as far as it is known here."""
        path = options.text(self.options, "SITE_SOURCES_DIR")  # empty: the order has been carried out all the same
        folder = SourceFolder(Path(path))
        if task.source is not None and path and not folder.look() and folder.library.lacks(task.source):
            self.complain(
                f"source {task.source!r} of {self.task_id} is none of {folder.folder}; where the crawl does not have "
                "it either, all seeds of the task that name no other become dead letters"
            )
        if task.webhook is not None and not self._tells_ends:
            self.complain(f"the webhook of {self.task_id} is not sent, because {EXACTLY_ONCE} is true")
        elif task.webhook is not None and not spill_keys(self.options):
            self.complain(
                f"the webhook of {self.task_id} is not signed, because SITE_SPILL_KEY is empty: its receiver "
                "cannot know that it comes from this crawl"
            )

    def pause(self) -> None:
        self._answer(self._orders.pause().said, state="paused")

    def resume(self) -> None:
        ordered, phase = self._orders.resume(), self.desk.board.phase(self.task_id)
        self._answer(ordered.said, state=phase.name, reason=phase.reason, returned=ordered.returned)

    def cancel(self) -> None:
        """What has not begun ends. Prints the totals when they change no more."""
        back = self._orders.cancel().returned
        facts = self._settled()
        self._answer(
            f"task {self.task_id} is cancelled; {facts.said()}; links cancelled: {facts.links_cancelled}; "
            f"{back} parked messages put back",
            state="cancelled",
            returned=back,
            links_cancelled=facts.links_cancelled,
            **facts.numbers(),
        )

    def _settled(self) -> TaskFacts:
        """What is known, once the processes have told nothing new for a while."""
        deadline = runtime.monotonic() + _LONGEST_SECONDS
        last, since = self._facts(), runtime.monotonic()
        while runtime.monotonic() < min(deadline, since + _SETTLE_SECONDS):
            runtime.sleep(_POLL_SECONDS)
            self.desk.read()
            if (now := self._facts()) != last:
                last, since = now, runtime.monotonic()
        return last

    def delete(self) -> None:
        """Nothing is known of it any more; its results stay. None of its seeds may be left."""
        facts = self._orders.known(may_be_new=False)
        if facts.parked:
            raise BadTask(f"{facts.parked} messages of {self.task_id!r} are parked; resume or cancel it first")
        if self._tells_ends and not facts.is_ended and (facts.is_closed or facts.is_over):
            raise BadTask(_ABOUT_TO_END.format(self.task_id))
        if self._tells_ends and self.desk.overview().is_untold(facts):
            hint = f"; scrapy task notify {self.task_id}" if facts.declared and facts.declared.webhook else ""
            raise BadTask(_NOT_TOLD.format(self.task_id) + hint)
        if self._has_seeds():
            end = f"close {self.task_id} --again" if facts.is_ended else f"cancel {self.task_id}"
            raise BadTask(
                f"seeds of {self.task_id!r} wait or are under way, or somebody is producing them; say first: "
                f"scrapy task {end}{f'; scrapy task wait {self.task_id}' if self._tells_ends else ''}"
            )
        self.desk.forget(self.task_id)
        if facts.pages_begun or facts.seeds:  # a process may have told more before it heard of that
            runtime.sleep(_SETTLE_SECONDS)
            self.desk.forget(self.task_id)
        self._answer(f"task {self.task_id} is deleted", deleted=True)

    def _has_seeds(self) -> bool:
        """Whether somebody produces seeds of it, or not all of them are complete and committed."""
        ending = read_endings(self.desk.log, self.desk.topics).get(self.task_id) if self._tells_ends else None
        return (ending is not None and ending.has_seeds) or next(self._waiting(), None) is not None

    def _waiting(self) -> Iterator[Seed]:
        desk, group = self.desk, options.text(self.options, "SITE_CONSUMER_GROUP", required=True)
        return chain(*(in_seed_topic(desk.log, tier, group, self.task_id) for tier in desk.topics.tiers))

    def close(self) -> None:
        check_ends_are_told(self.options)
        facts = self._orders.known()
        ordered = self._orders.close(again=self.opts.again)
        ended = {"generation": facts.generation} if facts.is_ended and not self.opts.again else {}
        self._answer(ordered.said, closed=True, **ended)

    def wait(self) -> None:
        """End with it. Exit code 0; 3 when cancelled or expired; 4 when a budget was spent."""
        check_ends_are_told(self.options)
        desk, endings = self.desk, Endings(self.task_id)
        away = Outage(logger, "The end is waited for", "The log answers again")
        with closing(TopicView(desk.log, desk.topics.control, endings.take)) as view:
            view.read_on()
            self._orders.known(may_be_new=False)
            look_at = 0.0
            while not _is_told(ending := endings.get(self.task_id)):
                with away.tried(LogUnavailable):
                    if runtime.monotonic() >= look_at:
                        desk.read()
                        look_at = runtime.monotonic() + _LOOK_SECONDS
                        if self._is_spent(TaskOverview(desk.board, endings)):
                            return
                    view.taken(view.reader.poll(_POLL_SECONDS))
                if away.is_on:
                    runtime.sleep(_POLL_SECONDS)
        assert ending is not None
        assert ending.ended is not None
        facts = TaskOverview(desk.board, endings).of(self.task_id)
        said = {name: value for name, value in ending.ended.event.items() if name != "task_id"}
        self._answer(f"task {self.task_id}: {facts.state}; {facts.said()}", **said)
        if facts.state != "done":
            self.exitcode = EXIT_STOPPED

    def _is_spent(self, overview: TaskOverview) -> bool:
        if not overview.knows(self.task_id):
            raise BadTask(f"{self.task_id!r} was deleted meanwhile")
        facts = overview.of(self.task_id)
        if facts.is_spent:
            said = f"task {self.task_id} is paused: {facts.reason}; {facts.said()}"
            self._answer(said, state=facts.state, reason=facts.reason, **facts.numbers())
            self.exitcode = EXIT_SPENT
        return facts.is_spent

    def notify(self) -> None:
        """Send the webhook of the end once more. Exit code 1 when it is not taken."""
        desk, secret = self.desk, signed_post.secret_of(spill_keys(self.options))
        if self.opts.secret:
            self._answer(secret.decode() or "none: SITE_SPILL_KEY is empty", secret=secret.decode())
            return
        task = self._orders.known(may_be_new=False).declared
        ending = read_endings(desk.log, desk.topics).get(self.task_id)
        if ending is None or ending.ended is None:
            raise BadTask(f"{self.task_id!r} has not ended, so there is nothing to send")
        if task is None or task.webhook is None:
            raise BadTask(f"{self.task_id!r} has no webhook; say: scrapy task set {self.task_id} webhook=URL")
        attempts = tried(task.webhook, ending.ended, ending.made, secret, guard_of(self.options))
        with closing(desk.log.producer()) as producer:
            producer.send(desk.topics.control, *written(self.task_id, attempts)).result()
        made, error = attempts.made, attempts.made[-1].error
        self._answer(
            f"task {self.task_id}: {error or 'the webhook was taken'}; attempts: {len(made)}",
            taken=not error,
            attempts=[each._asdict() for each in made],
        )
        if error:
            self.exitcode = EXIT_FAILED


class Verb(NamedTuple):
    """What stands behind `scrapy task`, and how many words may stand behind the task's id."""

    usage: str
    work: Callable[[Command], None]
    most_words: int = 0


VERBS: Mapping[str, Verb] = {
    "start": Verb("start ID [--file FILE] [options]", Command.start),
    "list": Verb("list", Command.list_all),
    "show": Verb("show ID", Command.show_one),
    "set": Verb("set ID NAME=VALUE ... [--dry-run]", Command.set, most_words=50),
    "pause": Verb("pause ID", Command.pause),
    "resume": Verb("resume ID", Command.resume),
    "cancel": Verb("cancel ID", Command.cancel),
    "close": Verb("close ID", Command.close),
    "wait": Verb("wait ID", Command.wait),
    "notify": Verb("notify ID", Command.notify),
    "delete": Verb("delete ID", Command.delete),
}


def _read(path: Path) -> dict[str, Any]:
    keys = "fields of a task, such as weight"
    return read_with(path, lambda raw, path: parse(raw, path, Task, dict[str, Any], keys))


def _is_told(ending: TaskEnding | None) -> bool:
    return ending is not None and ending.is_told and ending.noticed >= ending.generation
