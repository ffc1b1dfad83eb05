"""`scrapy dead-letters`: lists dead letters with their reasons, and replays them."""

from __future__ import annotations

import argparse
from contextlib import closing
from itertools import islice

from site_spider import options
from site_spider.commands.output import Column, add_format_option, add_limit_option, print_counted, print_json
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.contracts.seed_log import Message, SeedLog
from site_spider.dead_letter_replay import SUFFIX, Letter, Replay, beginning, letters, topic_of
from site_spider.errors import TopicMissing
from site_spider.seed.topics import CrawlTopics, Tiers
from site_spider.service import config as parts

__name__ = "site_spider.commands.dead-letters"  # Scrapy names the command after it

_SHOWN_CHARACTERS = 60  # of a value in the table
_COLUMNS = (
    Column("ORIGIN"),
    Column("FAILED_AT", optional=True),
    Column("REPLAYED", optional=True),
    Column("ERROR", shrinks=True),
    Column("KEY", shrinks=True, optional=True),
    Column("VALUE", shrinks=True),
)


class Command(SiteCommand):
    """Lists without a consumer group; replays with one, which remembers what was put back."""

    max_arguments = 1
    usage = "[list|replay] [options]"
    summary = "List dead letters with their reasons, or replay them"
    description = (
        "Lists dead letters with reason and origin (list, the default), or puts their original bytes back "
        "into the topic they came from (replay). Fix the cause first: a message that is still wrong becomes "
        "a new dead letter. A replay puts every message back once; a second replay continues where the first "
        "ended. The messages stay in the dead-letter topic, too."
    )
    examples = """
        scrapy dead-letters
        scrapy dead-letters list --topic seeds --format json
        scrapy dead-letters replay
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument(
            "--topic",
            metavar="T",
            type="topic",
            help=f"a dead-letter topic (ends in {SUFFIX}), or the seed topic whose dead letters are meant "
            "(default: SITE_DEAD_LETTER_TOPIC, else that of SITE_SEED_TOPIC)",
        )
        add_limit_option(parser, "list")
        add_format_option(parser)
        self._of_list = {name: parser.get_default(name) for name in ("limit", "format")}
        parser.set_defaults(**dict.fromkeys(self._of_list))  # so that it shows whether one is given

    def work(self, opts: argparse.Namespace) -> None:
        verb = opts.args[0] if opts.args else "list"
        if verb not in ("list", "replay"):
            self.refuse(f"unknown verb {verb!r}: say list or replay")
        self.refuse_of_others(verb, dict.fromkeys(self._of_list, "list"), opts)
        vars(opts).update((name, usual) for name, usual in self._of_list.items() if getattr(opts, name) is None)
        topic = topic_of(self.options, opts.topic)
        with closing(parts.seed_log(self.options)) as log:
            log.check(parts.CHECK_SECONDS)
            if opts.topic is not None:
                self._check_topic(log, opts.topic, topic)
            if verb == "replay":
                self._replay(log, topic, opts.topic)
            else:
                self._list(log, topic, opts)

    def _check_topic(self, log: SeedLog, given: str, topic: str) -> None:
        """Raise TopicMissing unless that topic, or one whose dead letters it would hold, exists."""
        seeds = topic.removesuffix(SUFFIX)
        known = (options.text(self.options, "SITE_DEAD_LETTER_TOPIC"), *Tiers.of(self.options).topics)
        if not any(log.partitions(name) for name in (topic, seeds)) and not {topic, seeds} & {*known}:
            raise TopicMissing(f"--topic is {given!r}, but neither {seeds} nor {topic} exists at {log.address}.")

    def _replay(self, log: SeedLog, topic: str, given: str | None) -> None:
        seeds = topic.removesuffix(SUFFIX)
        is_named = given == seeds or log.partitions(seeds) > 0  # else what can be put back came from our topics
        is_other = topic != topic_of(self.options) and is_named
        topics = CrawlTopics.beside(self.options, seeds if is_other else None)
        replay = Replay(log, topic, self._complain_about, topics)
        try:
            replay.run()
        finally:
            skipped = f", skipped {replay.skipped}" if replay.skipped else ""
            print(f"replayed {replay.replayed}{skipped}", flush=True)
        if replay.skipped:
            self.exitcode = EXIT_FAILED

    def _complain_about(self, message: Message, reason: str) -> None:
        self.complain(f"{message.partition} offset {message.offset} cannot be put back: {reason}")

    def _list(self, log: SeedLog, topic: str, opts: argparse.Namespace) -> None:
        found = letters(log, topic)
        shown = islice(found, opts.limit or None)
        if opts.format == "json":
            for letter in shown:
                print_json(letter.document())
        else:
            print_counted(f"Dead letters in {topic}", _COLUMNS, [_row(letter) for letter in shown])
        if next(found, None) is not None:
            self.complain(f"there are more than these {opts.limit}; --limit 0 shows all")


def _row(letter: Letter) -> list[object]:
    message, headers, replayed = letter
    return [
        letter.origin,
        headers.get("failed_at"),
        "yes" if replayed else "no",
        headers.get("error"),
        beginning(message.key, _SHOWN_CHARACTERS),
        beginning(message.value, _SHOWN_CHARACTERS),
    ]
