"""`scrapy demo`: serves a sample site on loopback."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import closing

from site_spider.commands.demo_server import serving
from site_spider.commands.demo_site import BAD_MESSAGES, seeds
from site_spider.commands.site_command import SiteCommand
from site_spider.seed.seed import seed_message
from site_spider.seed.tiers import Tiers
from site_spider.service import plugins as parts


class Command(SiteCommand):
    """Serves until it is stopped."""

    description = (
        "Serves a small sample site on loopback (127.0.0.2 and up) until SIGTERM or Ctrl-C. Prints its seeds "
        "for `scrapy seed`. With --produce it puts them into the seed topic, together with two messages that "
        "are not valid seeds. To crawl the site, set SITE_ALLOW_PRIVATE_HOSTS=true."
    )
    examples = """
        scrapy demo
        scrapy demo --port 8000 > seeds.txt
        scrapy demo --produce
    """

    def syntax(self) -> str:
        """As Scrapy asks."""
        return "[options]"

    def short_desc(self) -> str:
        """As Scrapy asks."""
        return "Serve a sample site to crawl"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As Scrapy asks."""
        super().add_options(parser)
        parser.add_argument("--port", metavar="N", type=int, default=0, help="default: a free one")
        parser.add_argument("--produce", action="store_true", help="produce the seeds to the seed topic")

    def work(self, opts: argparse.Namespace) -> None:
        """Serve. Raises SiteSpiderError."""
        signal.signal(signal.SIGTERM, _end)
        with serving(opts.port) as port:
            lines = seeds(port)
            if opts.produce:
                self._produce(lines)
                print(f"produced {len(lines)} seeds and {len(BAD_MESSAGES)} bad messages")
            else:
                print("\n".join(lines))
            print(f"serving on port {port}", file=sys.stderr)
            sys.stdout.flush()
            while True:
                signal.pause()

    def _produce(self, lines: list[str]) -> None:
        topic = Tiers.of(self.options).main
        with closing(parts.seed_log(self.options)) as log, closing(log.producer()) as producer:
            messages = [seed_message(line, task_id="demo") for line in lines]
            sent = [producer.send(topic, key, value) for key, value in messages]
            sent += [producer.send(topic, None, value) for value in BAD_MESSAGES]
            for future in sent:
                future.result()


def _end(_number: int, _frame: object) -> None:
    sys.exit(0)
