"""`scrapy crawl` with exit codes that say how the crawl ended."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import sys
from collections.abc import Iterator

from scrapy import Spider, signals
from scrapy.exceptions import UsageError
from scrapy.settings import BaseSettings
from scrapy.spiderloader import get_spider_loader

from site_spider.commands.output import complain, escape_logs_and_tracebacks
from site_spider.commands.site_command import EXIT_FAILED, loaded_spider
from site_spider.engine.scrapy_commands import CrawlCommand
from site_spider.engine.scrapy_parts import load_class
from site_spider.errors import EXIT_CONFIG, EXIT_SETUP, EXIT_SOFTWARE, EXIT_UNAVAILABLE, ConfigError
from site_spider.redaction import Redaction, redact_logs
from site_spider.service import environment
from site_spider.service.check import check_takes_seeds
from site_spider.service.environment import apply_environment
from site_spider.service.log_lines import own_feeds, own_log_lines, processes_of, shorten_start
from site_spider.service.settings_checks import check_log_settings, not_there

logger = logging.getLogger(__name__)

# Some 30 objects of a page live until its result is acknowledged; Python's 700 has all looked at in vain.
# A middle collection after each young one looks at 20,000 objects, up to 15 ms of a turn while 50,000 entries of a
# sitemap begin to wait; so it does after three of 5,000, and all collections take twice as long. A full one is rare.
_COLLECTED_OBJECTS = (10_000, 0, 42)

EXIT_TEMPORARY = 75  # EX_TEMPFAIL of sysexits.h: a server went away for good while crawling


class Command(CrawlCommand):
    """Adds to Scrapy's: the environment, a wrong setting in one line, and exit codes.

    0: stopped or finished; 69: a server was away at the start; 70: an error of its own; 71: one that kept it
    from taking seeds; 75: a server went away for good, to be started again; 78: a wrong setting; 1: whatever
    else kept it from starting.
    """

    _has_opened = False
    _is_scrapys = False  # a spider of another project that takes no seeds: nothing is changed
    _spider: type[Spider] | None = None  # None while it is not known that there is such a one
    _redaction = Redaction(())

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """As Scrapy asks; custom_settings and the environment count for the process as well.

        Scrapy builds the DNS resolver from the settings of the process.
        """
        super().process_options(args, opts)
        assert self.settings is not None
        if environment.has_our_settings(self.settings):
            apply_environment(self.settings)  # which may name modules of spiders
        loader = get_spider_loader(self.settings)
        self._spider = spider = loader.load(args[0]) if args and args[0] in loader.list() else None
        takes_seeds = getattr(spider, "takes_seeds", False)
        self._is_scrapys = not takes_seeds and not environment.has_our_settings(self.settings)
        if self._is_scrapys:
            return
        self._spider_name(args)  # what is wrong is said before there is an event loop
        escape_logs_and_tracebacks()
        if takes_seeds and environment.has_addon(self.settings):
            environment.apply_our_settings(self.settings)
        if spider is not None:
            spider.update_settings(self.settings)
        apply_environment(self.settings)
        own_log_lines(self.settings)
        try:
            check_log_settings(self.settings)
        except ConfigError as error:
            self._refuse(error)
            sys.exit(EXIT_CONFIG)
        shorten_start(self.settings)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        if self._is_scrapys:
            super().run(args, opts)
            return
        name = self._spider_name(args)
        if processes_of() and self._spider is not None:  # it would be started again and again
            try:
                check_takes_seeds(self._spider)
            except ConfigError as error:
                self._refuse(error)
                return
        assert self.crawler_process is not None
        crawler = self.crawler_of(name)
        own_feeds(crawler.settings)  # of which the spider has had its say
        self._redaction = redact_logs(crawler.settings)
        crawler.signals.connect(self._spider_opened, signal=signals.spider_opened)
        crawler.signals.connect(self._spider_closed, signal=signals.spider_closed)
        gc.set_threshold(*_COLLECTED_OBJECTS)
        try:
            crawling = self.crawler_process.crawl(crawler, **opts.spargs)
            load_class("TWISTED_DNS_RESOLVER", crawler.settings["TWISTED_DNS_RESOLVER"])  # as Scrapy does, namelessly
            self.crawler_process.start()
        except ConfigError as error:
            self._refuse(error)
            return
        failure = _failure(crawling)
        if failure is not None:
            self._failed(failure, crawler.settings)
        elif self.crawler_process.bootstrap_failed:
            self.exitcode = EXIT_FAILED
        elif not self.exitcode:  # Scrapy may have closed the spider before the start has failed
            self.exitcode = getattr(crawler.spider, "exit_code", 0)

    def _spider_name(self, args: list[str]) -> str:
        if not args:
            raise UsageError
        unknown = [arg for arg in args if arg.startswith("-")]
        if unknown or len(args) > 1:
            raise UsageError(f"unexpected argument {(unknown or args[1:])[0]!r}", print_help=False)
        assert self.settings is not None
        loaded_spider(self.settings, args[0])
        return args[0]

    def _spider_opened(self) -> None:
        self._has_opened = True
        gc.freeze()  # modules, settings and the parts of the crawl: looking through them takes 80 ms

    def _spider_closed(self, spider: Spider, reason: str) -> None:
        code = getattr(spider, "exit_code", 0)
        self.exitcode = EXIT_TEMPORARY if code == EXIT_UNAVAILABLE and reason != "cannot_start" else code

    def _failed(self, failure: BaseException, settings: BaseSettings) -> None:
        wrong_setting = next((error for error in _chain(failure) if isinstance(error, ConfigError)), None)
        if wrong_setting is None and not self._has_opened:
            wrong_setting = not_there(settings)
        if wrong_setting is not None:
            self._refuse(wrong_setting)
        else:
            logger.error("The crawl could not be started or went wrong", exc_info=failure)
            self.exitcode = EXIT_SOFTWARE if self._has_opened else EXIT_SETUP

    def _refuse(self, error: ConfigError) -> None:
        complain(self._redaction(f"scrapy crawl: {error}"))
        self.exitcode = EXIT_CONFIG


def _failure(crawling: object) -> BaseException | None:
    """What ended a crawl before its time; asking for it keeps asyncio from printing a traceback."""
    if isinstance(crawling, asyncio.Future) and crawling.done() and not crawling.cancelled():
        return crawling.exception()
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
