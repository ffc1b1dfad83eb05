"""`scrapy console`: serves pages about the fleet."""

from __future__ import annotations

import argparse
import asyncio
import signal
from contextlib import closing, suppress
from functools import partial

from site_spider import options
from site_spider.commands.output import add_group_options, number, show
from site_spider.commands.site_command import SiteCommand
from site_spider.console.access import Listening
from site_spider.console.url_search import UrlSearch
from site_spider.console.watch import FleetWatch
from site_spider.contracts.seed_log import SeedLog
from site_spider.results.document import result_fields
from site_spider.seed.topics import CrawlTopics
from site_spider.service import config
from site_spider.service.config import check_ends_are_told

_DEFAULT_PORT = 8787


class Command(SiteCommand):
    """Serves until it is stopped."""

    summary = "Serve pages about the running crawls"
    description = (
        "Serves pages about all processes of the consumer group: whether every seed is accounted for, how "
        "fast the group is and why not faster, tasks, processes, hosts, failures with dead letters, sinks, "
        "and where a URL is. Each page is JSON, too (?format=json). /metrics and /healthz are about the "
        "processes of this host. Other machines can connect only with SITE_CONSOLE_TOKEN or client "
        "certificates."
    )
    examples = """
        scrapy console
        scrapy console --port 9000
        SITE_CONSOLE_TOKEN=... scrapy console --host 0.0.0.0 --certificate c.pem --key k.pem
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--host", metavar="H", default="127.0.0.1", help="address (default: 127.0.0.1)")
        said = f"default: {_DEFAULT_PORT}; 0: a free one"
        port = partial(number, least=0, most=65_535)
        parser.add_argument("--port", metavar="N", type=port, default=_DEFAULT_PORT, help=said)
        parser.add_argument("--certificate", metavar="FILE", type="file", default="", help="serve HTTPS with it (PEM)")
        parser.add_argument("--key", metavar="FILE", type="file", default="", help="the key of the certificate (PEM)")
        said = "only clients with a certificate of this CA (PEM)"
        parser.add_argument("--client-ca", metavar="FILE", type="file", default="", help=said)
        add_group_options(parser)

    def work(self, opts: argparse.Namespace) -> None:
        import uvloop  # noqa: PLC0415 - as aiohttp below

        token = options.text(self.options, "SITE_CONSOLE_TOKEN")
        listening = Listening(opts.host, opts.port, token, opts.certificate, opts.key, opts.client_ca)
        listening.check()
        with closing(config.seed_log(self.options)) as log, suppress(asyncio.CancelledError):
            # asyncio's own loop logs each connection beyond the file descriptors, thousands in a second
            uvloop.run(self._serve(log, listening, opts))

    async def _serve(self, log: SeedLog, listening: Listening, opts: argparse.Namespace) -> None:
        # aiohttp and Jinja2 for this command alone: Scrapy imports all commands at the start of each
        from site_spider.console.server import DeadLetterCache, Handlers  # noqa: PLC0415

        watch = FleetWatch.read(self.options, log, opts.group, opts.topic)
        topics = CrawlTopics.beside(self.options, opts.topic)
        by_task = options.choice(self.options, "SITE_DUPEFILTER_SCOPE", ("task", "group")) == "task"
        reader = partial(config.reader, self.options)
        search = UrlSearch(
            log, watch.topics, watch.group, topics.dead_letters, reader, by_task, result_fields(self.options)
        )
        check_ends = partial(check_ends_are_told, self.options)
        console = Handlers(listening, watch, DeadLetterCache(log, topics), search, self._redaction, check_ends)
        task = asyncio.current_task()
        assert task is not None
        for ending in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(ending, task.cancel)
        if not listening.is_loopback and not listening.certificate:
            self.complain("SITE_CONSOLE_TOKEN passes the network unencrypted; --certificate and --key encrypt it")
        await console.serve(lambda address: show(f"The console is at {address}"))
