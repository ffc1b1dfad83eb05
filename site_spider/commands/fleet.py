"""What `scrapy console` and `scrapy top` share: which group they watch, and how."""

from __future__ import annotations

import argparse

from scrapy.settings import BaseSettings

from site_spider import options
from site_spider.console.watch import FleetWatch
from site_spider.contracts.seed_log import SeedLog
from site_spider.seed.tiers import CrawlTopics
from site_spider.tasks.follower import TaskTopics


def add_group_options(parser: argparse.ArgumentParser) -> None:
    """The options --group and --topic."""
    parser.add_argument("--group", metavar="G", help="default: SITE_CONSUMER_GROUP")
    parser.add_argument("--topic", metavar="T", help="default: all of SITE_SEED_TOPICS")


def fleet_watch(settings: BaseSettings, log: SeedLog, opts: argparse.Namespace) -> FleetWatch:
    """Of the group that is asked for. Raises ConfigError."""
    topics = CrawlTopics.beside(settings, opts.topic)
    return FleetWatch(
        log,
        group=opts.group or options.text(settings, "SITE_CONSUMER_GROUP", required=True),
        topics=topics.tiers if opts.topic is None else (opts.topic,),
        statistics_topic=topics.statistics,
        tasks=TaskTopics.of(topics),
        interval_seconds=options.seconds(settings, "SITE_STATS_INTERVAL_SECONDS", minimum=0.1),
    )
