"""What `scrapy console` and `scrapy top` share: which group they watch, and how."""

from __future__ import annotations

import argparse

from scrapy.settings import BaseSettings

from site_spider import options
from site_spider.console.watch import FleetWatch
from site_spider.contracts.seed_log import SeedLog


def add_group_options(parser: argparse.ArgumentParser) -> None:
    """The options --group and --topic."""
    parser.add_argument("--group", metavar="G", help="default: SITE_CONSUMER_GROUP")
    parser.add_argument("--topic", metavar="T", help="default: SITE_SEED_TOPIC")


def fleet_watch(settings: BaseSettings, log: SeedLog, opts: argparse.Namespace) -> FleetWatch:
    """Of the group that is asked for. Raises ConfigError."""
    topic = opts.topic or options.text(settings, "SITE_SEED_TOPIC", required=True)
    return FleetWatch(
        log,
        group=opts.group or options.text(settings, "SITE_CONSUMER_GROUP", required=True),
        topic=topic,
        statistics_topic=options.text(settings, "SITE_STATS_TOPIC") or f"{topic}.stats",
        interval_seconds=options.seconds(settings, "SITE_STATS_INTERVAL_SECONDS", minimum=0.1),
    )
