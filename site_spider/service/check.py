"""Whether a crawl with these settings would start: where they come from, its rights, and its servers."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings, Settings

from site_spider import options
from site_spider.contracts.seed_log import Granted, Right, SeedLog
from site_spider.dupefilter.remote import store_class
from site_spider.errors import EXIT_CONFIG, EXIT_SETUP, EXIT_UNAVAILABLE, ConfigError, SiteSpiderError, exit_code_of
from site_spider.observe.metrics.exporter import MetricsAddress, serve_metrics
from site_spider.observe.snapshot import Identity
from site_spider.observe.statistics import StatisticsPlan, statistics_id
from site_spider.redaction import Redaction, masked, secrets_of
from site_spider.service import config as plugins
from site_spider.service import environment
from site_spider.service.config import ServiceSettings
from site_spider.service.environment import ENVIRONMENT_PRIORITY
from site_spider.service.notices import sender
from site_spider.service.service import SeedService
from site_spider.service.settings_checks import not_there
from site_spider.sources.url_rules import UrlRulesFile
from site_spider.text import plural

ESSENTIAL: Final = (  # what people want to see though nobody has changed it
    *("SITE_KAFKA_BROKERS", "SITE_SEED_TOPIC", "SITE_SEED_TOPICS", "SITE_CONSUMER_GROUP", "SITE_SINKS"),
    *("SITE_DATA_DIR", "CONCURRENT_REQUESTS"),
)
_OF_COMMANDS: Final = frozenset({"LOG_LEVEL", "LOG_FILE", "LOG_FORMAT"})  # a command has its own
_PART_SECONDS = 30.0


class SettingSource(NamedTuple):
    """A setting as it would be used, without what is secret in it, and who has set it."""

    name: str
    value: Any
    source: str
    is_default: bool


class Finding(NamedTuple):
    """What is there of that which a crawl needs; `code` is what it would end with, or 0."""

    what: str
    says: str
    code: int = 0


def check_takes_seeds(spider: type[Spider]) -> None:
    """Raise ConfigError for a spider that begins with requests of its own."""
    if not getattr(spider, "takes_seeds", False):
        raise ConfigError(
            f"Spider {spider.name} takes no seeds: `class {spider.__name__}(SeedSpider)` would, see "
            f"docs/own-spiders.md. As it is, run it once with `scrapy crawl {spider.name}`."
        )


def check_crawl(settings: Settings, spider: type[Spider], arguments: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError for what would end its start. Without the arguments of the spider it is not made."""
    check_takes_seeds(spider)
    crawler = Crawler(spider, settings)
    if arguments is not None:
        spider.from_crawler(crawler, **arguments)
    config = ServiceSettings(crawler.settings)
    UrlRulesFile.open(crawler.settings)
    sender(crawler.settings, config.spill_keys)
    plugins.sinks(crawler.settings)
    plugins.statistics_stores(crawler.settings)
    identity = Identity(spider.name, config.consumer_group, config.tiers.main, str)
    StatisticsPlan(crawler.settings, statistics_id(crawler.settings, identity))


def origins(settings: BaseSettings, spider: type[Spider]) -> Iterator[SettingSource]:
    """All settings of ours, and those of Scrapy that somebody has set; by name."""
    redaction = Redaction(secrets_of(settings))
    is_other = environment.has_addon(settings)
    usual = SETTINGS_PRIORITIES["addon" if is_other else "project"]
    for name in sorted(settings):
        priority, value = settings.getpriority(name) or 0, settings[name]
        is_component = isinstance(value, BaseSettings)
        is_wanted = name.startswith("SITE_") or name in ESSENTIAL or priority > usual
        if is_component or name in _OF_COMMANDS or not is_wanted or (is_other and name == "ADDONS"):
            continue
        shown = masked(name, value)
        shown = redaction(shown) if isinstance(shown, str) else shown
        yield SettingSource(name, shown, _source(settings, name, priority, spider), priority <= usual)


def _source(settings: BaseSettings, name: str, priority: int, spider: type[Spider]) -> str:
    if priority >= SETTINGS_PRIORITIES["cmdline"]:
        return "command line"
    if priority >= ENVIRONMENT_PRIORITY:
        path = settings.get(f"{name}_FILE") or os.environ.get(f"{name}_FILE")
        return f"file {path}" if name in environment.SECRETS and path else "environment"
    if priority >= SETTINGS_PRIORITIES["spider"]:
        return f"custom_settings of {spider.name}"
    if priority >= SETTINGS_PRIORITIES["project"]:
        return os.environ.get("SCRAPY_SETTINGS_MODULE", "site_spider.settings")
    return "site_spider.settings" if priority >= SETTINGS_PRIORITIES["addon"] else "default of Scrapy"


def examine(settings: Settings, spider: type[Spider], arguments: Mapping[str, str] | None = None) -> Iterator[Finding]:
    """What a crawl would find. No group is joined, and nothing is written or created."""
    try:
        check_takes_seeds(spider)
        config, address = ServiceSettings(settings), MetricsAddress.read(settings)
        stores = asyncio.run(SeedService.rehearse(Crawler(spider, settings), arguments or {}))
        store = store_class(settings)
        done = store.from_settings(settings) if store is not None and hasattr(store, "from_settings") else None
        parts = [
            *((f"sink {sink.name}", sink) for sink in (*stores.sinks, *stores.item_sinks)),
            *((f"statistics {store.name}", store) for store in stores.statistics),
            *([] if done is None else [(f"dupefilter {settings['SITE_DUPEFILTER']}", done)]),
        ]
    except Exception as error:  # noqa: BLE001 - of somebody's own class, say
        code = exit_code_of(error, EXIT_SETUP)
        if code == EXIT_SETUP and (wrong := not_there(settings)):
            error, code = wrong, EXIT_CONFIG
        yield Finding("settings", repr(error) if code == EXIT_SETUP else str(error), code)
        return
    yield Finding("settings", "can be used")
    if address is not None:
        yield asyncio.run(_of_metrics(settings, address))
    if options.text(settings, "SITE_KAFKA_BROKERS"):
        yield from _of_kafka(stores.log, config, settings)
    else:
        try:
            stores.log.granted(())
            yield Finding("seed log", f"embedded, in {settings['SITE_DATA_DIR']}")
        except SiteSpiderError as error:
            yield Finding("seed log", str(error), exit_code_of(error, EXIT_SETUP))
    for what, part in parts:
        if not what.startswith("sink kafka"):  # the topics are those above
            yield _of_part(what, part)


async def _of_metrics(settings: Settings, address: MetricsAddress) -> Finding:
    try:
        if (metrics := await serve_metrics(settings, wait_seconds=0)) is not None:
            await metrics.close()
    except ConfigError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE:
            return Finding("metrics", f"{address} is taken, by a crawl that runs or by somebody else")
        return Finding("metrics", str(error), EXIT_CONFIG)
    return Finding("metrics", f"{address} is free")


def _of_kafka(log: SeedLog, config: ServiceSettings, settings: BaseSettings) -> Iterator[Finding]:
    try:
        log.check(plugins.CHECK_SECONDS)
        yield Finding("Kafka", f"{log.address} answers")
        needed = plugins.needed_rights(config, settings)
        for said in log.granted(needed):
            yield Finding(*_of_right(log, said), code=EXIT_CONFIG if said.missing and said.exists else 0)
        for said in log.granted(_useful_rights(config)):
            what, says = _of_right(log, said)
            yield Finding(what, f"{says}; a crawl starts without" if said.missing else says)
    except SiteSpiderError as error:
        yield Finding("Kafka", str(error), exit_code_of(error, EXIT_SETUP))
    if config.exactly_once:
        yield Finding("transactional ids", "Kafka does not say whether this process may use them")


def _useful_rights(config: ServiceSettings) -> list[Right]:
    """Of what works beside the crawl: statistics for consoles, and some of tasks."""
    topics = config.topics
    both = [topics.statistics, topics.pages, topics.parked]
    return [*(Right("topic", topic, ("Read", "Write")) for topic in both), Right("topic", topics.events, ("Write",))]


def _of_right(log: SeedLog, said: Granted) -> tuple[str, str]:
    kind, name, operations = said.right
    what = f"{kind} {name}"
    if not said.exists:
        return what, "does not exist" + (", and this user may not create it: create it" if said.missing else " yet")
    if not said.is_known:
        return what, "Kafka does not say what this user may do"
    if said.missing:
        return what, f"this user may not {_joined(said.missing, 'or')}"
    number = f", {plural(log.partitions(name), 'partition')}" if kind == "topic" else ""
    return what, f"this user may {_joined(operations, 'and')}{number}"


def _joined(words: Sequence[str], by: str) -> str:
    return f" {by} ".join(word.lower() for word in words)


def _of_part(what: str, part: Any) -> Finding:
    check = getattr(part, "check", None)
    if check is None:
        return Finding(what, "is not checked: its class has no method check")
    try:
        return Finding(what, asyncio.run(asyncio.wait_for(check(), _PART_SECONDS)) or "is not checked")
    except TimeoutError:
        return Finding(what, f"no answer within {_PART_SECONDS:.0f} s", EXIT_UNAVAILABLE)
    except Exception as error:  # noqa: BLE001 - of somebody's own class, say
        said = str(error) if isinstance(error, SiteSpiderError) else repr(error)
        return Finding(what, said, exit_code_of(error, EXIT_SETUP))
