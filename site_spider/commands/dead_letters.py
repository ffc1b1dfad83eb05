"""`scrapy dead-letters`: lists dead letters with their reasons, and replays them."""

from __future__ import annotations

import argparse
import base64
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

from site_spider import options
from site_spider.commands.dead_letter_replay import Replay, replayed_up_to
from site_spider.commands.output import add_format_option, print_json, print_table, show
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.commands.table import Column
from site_spider.contracts.seed_log import Message, Partition, SeedLog
from site_spider.errors import TopicMissing
from site_spider.seed.tiers import Tiers
from site_spider.service import plugins as parts

__name__ = "site_spider.commands.dead-letters"  # Scrapy names the command after it

_SUFFIX = ".dead-letters"
_SHOWN_CHARACTERS = 60  # of a value in the table
_DEFAULT_LIMIT = 1000
_CHECK_SECONDS = 10.0
_COLUMNS = (
    Column("ORIGIN"),
    Column("FAILED_AT", optional=True),
    Column("REPLAYED", optional=True),
    Column("ERROR", shrinks=True),
    Column("KEY", shrinks=True, optional=True),
    Column("VALUE", shrinks=True),
)


class Letter(NamedTuple):
    """A dead letter, its headers as text, and whether it was put back."""

    message: Message
    headers: Mapping[str, str]
    replayed: bool


class Command(SiteCommand):
    """Lists without a consumer group; replays with one, which remembers what was put back."""

    max_arguments = 1
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

    def syntax(self) -> str:
        """As Scrapy asks."""
        return "[list|replay] [options]"

    def short_desc(self) -> str:
        """As Scrapy asks."""
        return "List dead letters with their reasons, or replay them"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As Scrapy asks."""
        super().add_options(parser)
        parser.add_argument(
            "--topic",
            metavar="T",
            help=f"a dead-letter topic (ends in {_SUFFIX}), or the seed topic whose dead letters are meant "
            "(default: SITE_DEAD_LETTER_TOPIC, else that of SITE_SEED_TOPIC)",
        )
        parser.add_argument(
            "--limit",
            metavar="N",
            type=int,
            default=_DEFAULT_LIMIT,
            help=f"list at most N (default: {_DEFAULT_LIMIT}; 0: all)",
        )
        add_format_option(parser)

    def work(self, opts: argparse.Namespace) -> None:
        """List or replay. Raises SiteSpiderError."""
        verb = opts.args[0] if opts.args else "list"
        if verb not in ("list", "replay"):
            self.refuse(f"unknown verb {verb!r}: say list or replay")
        if opts.limit < 0:
            self.refuse(f"--limit is {opts.limit}, but must be 0 or more")
        topic = self._topic(opts.topic)
        with closing(parts.seed_log(self.options)) as log:
            log.check(_CHECK_SECONDS)
            if opts.topic is not None:
                self._check_topic(log, opts.topic, topic)
            if verb == "replay":
                self._replay(log, topic)
            else:
                self._list(log, topic, opts)

    def _topic(self, given: str | None) -> str:
        configured = options.text(self.options, "SITE_DEAD_LETTER_TOPIC")
        if given is None and configured:
            return configured
        name = given or Tiers.of(self.options).main
        return name if name.endswith(_SUFFIX) or name == configured else f"{name}{_SUFFIX}"

    def _check_topic(self, log: SeedLog, given: str, topic: str) -> None:
        """Raise TopicMissing unless that topic, or one whose dead letters it would hold, exists."""
        seeds = topic.removesuffix(_SUFFIX)
        known = (options.text(self.options, "SITE_DEAD_LETTER_TOPIC"), *Tiers.of(self.options).topics)
        if not any(log.partitions(name) for name in (topic, seeds)) and not {topic, seeds} & {*known}:
            raise TopicMissing(
                f"--topic is {given!r}, but neither {seeds} nor {topic} exists at {log.address}."
            )

    def _replay(self, log: SeedLog, topic: str) -> None:
        replay = Replay(log, topic, self._complain_about)
        try:
            replay.run()
        finally:
            skipped = f", skipped {replay.skipped}" if replay.skipped else ""
            print(f"replayed {replay.replayed}{skipped}", flush=True)
        if replay.skipped:
            self.exitcode = EXIT_FAILED

    def _complain_about(self, message: Message, reason: str) -> None:
        self.complain(f"{_place(message)} cannot be put back: {reason}")

    def _list(self, log: SeedLog, topic: str, opts: argparse.Namespace) -> None:
        found = _letters(log, topic)
        shown = islice(found, opts.limit or None)
        if opts.format == "json":
            for letter in shown:
                print_json(_document(letter))
        else:
            rows = [_row(letter) for letter in shown]
            show(f"Dead letters in {topic}: {len(rows)}")
            if rows:
                print_table(_COLUMNS, rows)
        if next(found, None) is not None:
            self.complain(f"there are more than these {opts.limit}; --limit 0 shows all")


def _letters(log: SeedLog, topic: str) -> Iterator[Letter]:
    try:
        done: dict[Partition, int] = replayed_up_to(log, topic)
        messages = log.read(topic)
    except TopicMissing:  # nothing was ever set aside
        return
    for message in messages:
        headers = {name: value.decode("utf-8", "backslashreplace") for name, value in message.headers}
        yield Letter(message, headers, message.offset < done.get(message.partition, 0))


def _row(letter: Letter) -> list[object]:
    message, headers, replayed = letter
    origin = "/".join(headers.get(f"origin_{part}", "?") for part in ("topic", "partition", "offset"))
    return [
        origin,
        headers.get("failed_at"),
        "yes" if replayed else "no",
        headers.get("error"),
        _beginning(message.key),
        _beginning(message.value),
    ]


def _beginning(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    text = raw[: 4 * _SHOWN_CHARACTERS].decode("utf-8", "backslashreplace")
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"


def _document(letter: Letter) -> dict[str, Any]:
    message, headers, replayed = letter
    topic, partition = message.partition
    return {
        "topic": topic,
        "partition": partition,
        "offset": message.offset,
        "timestamp": _moment(message.timestamp_ms),
        **{
            name: headers.get(name) for name in ("error", "origin_topic", "origin_partition", "origin_offset")
        },
        "failed_at": headers.get("failed_at"),
        "replayed": replayed,
        **_encoded("key", message.key),
        **_encoded("value", message.value),
        "headers": dict(headers),
    }


def _moment(timestamp_ms: int) -> str | None:
    """None beyond the years that there are: producers set it as they like."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return None


def _encoded(name: str, raw: bytes | None) -> dict[str, str | None]:
    """Bytes as text, or as base64, which a field of its own says, when they are not UTF-8."""
    if raw is None:
        return {name: None}
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(raw).decode(), f"{name}_encoding": "base64"}


def _place(message: Message) -> str:
    return f"{message.partition.topic}/{message.partition.number} offset {message.offset}"
