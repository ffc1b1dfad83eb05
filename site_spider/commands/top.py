"""`scrapy top`: the overview of the console in a terminal."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from site_spider.commands.output import add_format_option, add_group_options, print_json, show
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.console.pages import overview
from site_spider.console.watch import FleetWatch
from site_spider.service import config
from site_spider.text import cut, escaped

_DEFAULT_SECONDS = 2.0
_LEAST_SECONDS = 0.5
_HOME_AND_CLEAR = "\x1b[H\x1b[J"
_MARKS = {"bug": "!!", "stop": "!!", "slow": "! ", "note": "  "}


class Command(SiteCommand):
    """Draws until it is stopped, or once when nobody watches."""

    summary = "Show in the terminal how the fleet does"
    description = (
        "Shows the overview of `scrapy console` in the terminal, again and again until Ctrl-C: whether every "
        "seed is accounted for, lag, rates, time left, and why the crawl is slow. When the output is no "
        "terminal it is shown once, and the exit code is 1 if nothing could be read."
    )
    examples = """
        scrapy top
        scrapy top --seconds 5
        scrapy top --format json
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        said = f"between two drawings (default: {_DEFAULT_SECONDS:g}, at least {_LEAST_SECONDS:g})"
        parser.add_argument("--seconds", metavar="N", type=float, default=_DEFAULT_SECONDS, help=said)
        add_group_options(parser)
        add_format_option(parser)

    def work(self, opts: argparse.Namespace) -> None:
        if not opts.seconds >= _LEAST_SECONDS:
            self.refuse(f"--seconds is {opts.seconds:g}, but must be {_LEAST_SECONDS:g} or more")
        with closing(config.seed_log(self.options)) as log:
            watch = FleetWatch.read(self.options, log, opts.group, opts.topic)
            with closing(watch.tasks):
                if opts.format == "table" and sys.stdout.isatty():
                    asyncio.run(_draw(watch, opts.seconds))
                    return
                asyncio.run(watch.look_once())
                view = watch.view()
        document = overview(view)
        self.exitcode = EXIT_FAILED if view.is_unknown else 0
        if opts.format == "json":
            print_json(document)
            return
        for line in lines(document):
            show(line)


async def _draw(watch: FleetWatch, seconds: float) -> None:
    await watch.look_once()
    looking = asyncio.create_task(watch.run())
    try:
        while not looking.done():
            watch.attend()
            width, height = shutil.get_terminal_size()
            shown = [cut(escaped(line), width) for line in lines(overview(watch.view()))][: height - 1]
            sys.stdout.write(_HOME_AND_CLEAR + "\n".join(shown) + "\n")
            sys.stdout.flush()
            await asyncio.wait([looking], timeout=seconds)
    finally:
        looking.cancel()


def lines(document: dict[str, Any]) -> Iterator[str]:
    """The overview as text."""
    yield f"Group {document['group']} on topic {document['topic']} at {document['log']}, {document['at']}"
    yield from (f"!! {trouble}" for trouble in document["troubles"])
    yield ""
    yield from _conservation(document["conservation"])
    lives = ", ".join(f"{count} {life}" for life, count in document["processes"].items() if count) or "none"
    yield f"processes      {lives}"
    yield from _pace(document)
    yield from _tasks(document["tasks"])
    yield ""
    yield document["verdict"]
    yield from (f"{_MARKS[cause['weight']]} {cause['text']}" for cause in document["causes"])


def _conservation(found: dict[str, Any]) -> Iterator[str]:
    parts = [f"{count:,} {name.replace('_', ' ')}" for name, count in found["outcomes"].items() if count]
    parts.append(f"{found['in_flight']:,} in flight")
    if found["missing"]:
        parts.append(f"{found['missing']:,} MISSING")
    known = "Every seed is accounted for" if found["processes"] else "No process was heard of"
    yield known if found["conserved"] else "SEEDS ARE MISSING, which is a bug"
    yield f"consumed       {found['consumed']:,} = {' + '.join(parts)}"


def _tasks(found: dict[str, Any]) -> Iterator[str]:
    if found["count"]:
        parts = [f"{count:,} {state}" for state, count in found["states"].items()]
        parked = f"; {found['parked']:,} seeds are parked" if found["parked"] else ""
        yield f"tasks          {', '.join(parts)}{parked}"


def _pace(document: dict[str, Any]) -> Iterator[str]:
    progress, rates = document["progress"], document["rates"]
    if progress is not None:
        yield f"lag            {progress['lag']:,} seeds are left of {progress['end']:,}"
        if len(progress["tiers"]) > 1:
            lags = ", ".join(f"{topic} {part['lag']:,}" for topic, part in progress["tiers"].items())
            yield f"lag by tier    {lags}"
        yield f"time left      {progress['time_left']}"
    for name, rate in rates.items():
        if rate is not None:
            said = f"{rate['done']:,.1f} seeds/s, {rate['pages']:,.1f} pages/s, {rate['bytes'] / 1e6:,.2f} MB/s"
            yield f"rate {name:<9} {said}"
