"""Reads and checks the settings of a crawl's seed side."""

from __future__ import annotations

from typing import Any, cast

from scrapy.settings import BaseSettings

from site_spider import options
from site_spider.contracts.seed_log import Right, SeedLog
from site_spider.contracts.sink import ResultReader, Sink, StatisticsStore
from site_spider.download.address import is_metadata_name, is_public
from site_spider.engine.scrapy_parts import load_class
from site_spider.errors import ConfigError
from site_spider.frontier.spill import SpillRules
from site_spider.options import SettingsView
from site_spider.results.batches_and_retries import BatchLimits
from site_spider.results.delivery import OnDemand
from site_spider.results.transaction_queue import LONGEST_SPAN_OFFSETS
from site_spider.seed.fields import is_forbidden
from site_spider.seed.topics import CrawlTopics, Tiers
from site_spider.signed_post import MayReach

EXACTLY_ONCE = "SITE_KAFKA_EXACTLY_ONCE"
STATS_TO = "SITE_STATS_TO"
KAFKA = "kafka"  # in SITE_STATS_TO: the topic of statistics, at more moments
SEED_HEADERS = "headers"  # in SITE_SEED_META_KEYS: the seed's own, not a key of its meta
_IDLE_SHARE = 5  # a sink with nothing to do gets its next batch so many times sooner
_SHORTEST_KEY_BYTES = 16
CHECK_SECONDS = 10.0  # for the seed log to answer a command


class ServiceSettings:
    """What SeedService works by, named after the settings. Raises ConfigError for the first of no use."""

    def __init__(self, settings: SettingsView) -> None:
        self.topics = CrawlTopics.of(settings)
        self.tiers = Tiers.of(settings)
        self.consumer_group = options.text(settings, "SITE_CONSUMER_GROUP", required=True)
        self.cancelled_results = options.boolean(settings, "SITE_CANCELLED_RESULTS")
        self.limits = _limits(settings)
        # what leaves besides what is too much
        self.spill = SpillRules(
            open_seconds=options.seconds(settings, "SITE_SEED_MAX_OPEN_SECONDS", minimum=0.001),
            tree_pages=options.integer(settings, "SITE_TREE_MAX_PAGES", minimum=1),
            all_links=options.choice(settings, "SITE_LINKS_TO", ("memory", "kafka")) == "kafka",
        )
        self.host_ownership = options.boolean(settings, "SITE_HOST_OWNERSHIP")
        # pages are compared within their task
        self.by_task = options.choice(settings, "SITE_DUPEFILTER_SCOPE", ("task", "group")) == "task"
        size_bytes = options.integer(settings, "SITE_SINK_BATCH_BYTES", minimum=1)
        age_seconds = options.seconds(settings, "SITE_SINK_FLUSH_SECONDS")
        self.batch = BatchLimits(size_bytes, age_seconds=age_seconds, idle_age_seconds=age_seconds / _IDLE_SHARE)
        self.backlog_bytes = options.integer(settings, "SITE_SINK_BACKLOG_BYTES", minimum=1)
        self.bodies_bytes = options.integer(settings, "SITE_BODIES_MAX_BYTES", minimum=1)
        self.memory_soft_bytes = options.integer(settings, "SITE_MEMORY_SOFT_BYTES")  # 0: no limit
        self.startup_wait_seconds = options.seconds(settings, "SITE_STARTUP_WAIT_SECONDS")
        self.stop_grace_seconds = options.seconds(settings, "SITE_STOP_GRACE_SECONDS")
        self.idle_close_seconds = options.seconds(settings, "SITE_IDLE_CLOSE_SECONDS")  # 0: never
        self.revoke_grace_seconds = options.seconds(settings, "SITE_REVOKE_GRACE_SECONDS")
        self.callback_timeout_seconds = options.seconds(settings, "SITE_CALLBACK_TIMEOUT_SECONDS", 0.001)
        self.exactly_once = exactly_once(settings)
        self.tells_ends = not self.exactly_once  # of tasks; else links leave before their offsets are known
        self.seed_meta_keys = _seed_meta_keys(settings)
        self.spill_keys = spill_keys(settings)  # the first signs, each is accepted


def check_ends_are_told(settings: SettingsView) -> None:
    """Raise ConfigError where nobody would hear of the end of a task: see `ServiceSettings.tells_ends`."""
    if options.boolean(settings, EXACTLY_ONCE):
        raise ConfigError(
            f"The end of tasks is not told with {EXACTLY_ONCE}: a task cannot be closed or waited for, and no "
            "webhook is sent. See docs/tasks.md."
        )


def spill_keys(settings: SettingsView) -> tuple[bytes, ...]:
    """SITE_SPILL_KEY. Raises ConfigError, which does not show it."""
    keys = tuple(key.encode("utf-8", "surrogateescape") for key in options.names(settings, "SITE_SPILL_KEY"))
    if any(len(key) < _SHORTEST_KEY_BYTES for key in keys):
        raise ConfigError(
            f"SITE_SPILL_KEY has a key of less than {_SHORTEST_KEY_BYTES} bytes. Make one with: openssl rand "
            "-hex 32; commas stand between several, of which the first signs."
        )
    return keys


def exactly_once(settings: SettingsView) -> bool:
    """SITE_KAFKA_EXACTLY_ONCE. Raises ConfigError where the other settings do not allow for it."""
    if not options.boolean(settings, EXACTLY_ONCE):
        return False
    if not options.text(settings, "SITE_KAFKA_BROKERS"):
        raise ConfigError(
            f"{EXACTLY_ONCE} is true, but SITE_KAFKA_BROKERS is empty: the embedded seed log has no "
            f"transactions. Name the brokers, or set {EXACTLY_ONCE} to false."
        )
    if "kafka" not in (sinks := options.names(settings, "SITE_SINKS")):
        raise ConfigError(
            f"{EXACTLY_ONCE} is true, but SITE_SINKS is {','.join(sinks)!r}: only the sink kafka has part in "
            f"transactions. Add kafka, or set {EXACTLY_ONCE} to false."
        )
    return True


def _seed_meta_keys(settings: SettingsView) -> tuple[str, ...]:
    keys = options.names(settings, "SITE_SEED_META_KEYS")
    for key in keys:
        if is_forbidden(key):
            raise ConfigError(
                f"SITE_SEED_META_KEYS names {key!r}, which no seed may set: it would reach around the guards."
            )
    return tuple(keys)


def _limits(settings: SettingsView) -> tuple[int, int]:
    """How many seeds may be in flight, and how far apart those of one partition."""
    spans = options.integer(settings, "SITE_MAX_SPAN_OFFSETS", minimum=1)
    if options.boolean(settings, EXACTLY_ONCE):
        spans = min(spans, LONGEST_SPAN_OFFSETS)
    return options.integer(settings, "SITE_MAX_SEEDS_IN_FLIGHT", minimum=1), spans


# --- Loads the classes that settings name: seed log, sinks, stores of statistics, reader -----------------


def seed_log(settings: BaseSettings) -> SeedLog:
    """Kafka when SITE_KAFKA_BROKERS is set, else the embedded one. Raises ConfigError."""
    kind = "kafka" if options.text(settings, "SITE_KAFKA_BROKERS") else "local"
    loaded = load_class("SITE_SEED_LOG_CLASSES", options.mapping(settings, "SITE_SEED_LOG_CLASSES").get(kind))
    return cast(SeedLog, loaded.from_settings(settings))


def sinks(settings: BaseSettings, *, of_items: bool = False) -> list[Sink]:
    """Those of SITE_SINKS in their order, or of them that take items, but for what transactions store.

    Raises ConfigError.
    """
    found: dict[str, Any] = {}
    for name in options.names(settings, "SITE_SINKS"):
        kind = _class_named(settings, "SITE_SINKS", "SITE_SINK_CLASSES", name)
        if not of_items:
            found[name] = kind.from_settings(settings)
        elif hasattr(kind, "for_items"):
            found[name] = OnDemand(kind.for_items(settings))
    if not found and not of_items:
        raise ConfigError("SITE_SINKS is empty, but must name at least one sink, such as local.")
    if exactly_once(settings):
        found.pop("kafka", None)  # its settings have been checked
    return list(found.values())


def statistics_stores(settings: BaseSettings) -> list[StatisticsStore]:
    """Those of SITE_STATS_TO in their order, but for the topic of kafka. Raises ConfigError.

    Empty: Elasticsearch when its hosts are set, else the local store.
    """
    usual = "elasticsearch" if options.text(settings, "SITE_ELASTICSEARCH_HOSTS") else "local"
    names = options.names(settings, STATS_TO) or [usual]
    if KAFKA in names and not options.text(settings, "SITE_KAFKA_BROKERS"):
        raise ConfigError(f"{STATS_TO} names {KAFKA}, but SITE_KAFKA_BROKERS is empty; name the brokers.")
    found = []
    for name in (name for name in names if name != KAFKA):
        kind = _class_named(settings, STATS_TO, "SITE_STATS_CLASSES", name, KAFKA)
        if not hasattr(kind, "for_statistics"):
            raise ConfigError(
                f"{STATS_TO} names {name!r}, which has no class method for_statistics: see docs/observability.md."
            )
        found.append(cast(StatisticsStore, kind.for_statistics(settings)))
    return found


def reader(settings: BaseSettings, *, of_items: bool = False) -> ResultReader:
    """Reads results (or items) back from the first of SITE_SINKS that can be read. Raises ConfigError."""
    readable = options.mapping(settings, "SITE_READER_CLASSES")
    for name in options.names(settings, "SITE_SINKS"):
        if name in readable:
            kind = load_class("SITE_READER_CLASSES", readable[name])
            return cast(ResultReader, (kind.for_items if of_items else kind.from_settings)(settings))
        _class_named(settings, "SITE_SINKS", "SITE_SINK_CLASSES", name)
    raise ConfigError(
        f"SITE_SINKS is {settings.get('SITE_SINKS')!r}, but results can be read back from "
        f"{' or '.join(readable)} only; add one of them."
    )


def _class_named(settings: BaseSettings, setting: str, classes_setting: str, name: str, *besides: str) -> Any:
    classes = options.mapping(settings, classes_setting)
    if name not in classes and "." not in name:
        raise ConfigError(
            f"{setting} names {name!r}, but must name {', '.join([*classes, *besides])}, or the dotted path of a class."
        )
    return load_class(setting, classes.get(name, name))


def needed_rights(config: ServiceSettings, settings: BaseSettings) -> list[Right]:
    """Without these no seed could be crawled, or none could end, or tasks that are paused would be crawled."""
    names = [*config.tiers.topics, config.topics.tasks, config.topics.control]
    topics: dict[str, tuple[str, ...]] = dict.fromkeys(names, ("Read", "Write"))
    topics[config.topics.dead_letters] = ("Write",)
    if "kafka" in options.names(settings, "SITE_SINKS"):
        for name in ("SITE_RESULTS_TOPIC", "SITE_ITEMS_TOPIC"):
            topics[options.text(settings, name, required=True)] = ("Write",)
    rights = [Right("topic", topic, operations) for topic, operations in topics.items()]
    return [*rights, Right("group", config.consumer_group, ("Read",))]


def check_rights(log: SeedLog, config: ServiceSettings, settings: BaseSettings) -> None:
    """Raise ConfigError for those that are missing, as far as the servers say."""
    answers = log.granted(needed_rights(config, settings))
    missing = [
        f"{' and '.join(said.missing)} on the {said.right.kind} {said.right.name}"
        for said in answers
        if said.missing and said.exists  # one that does not exist may be made by somebody else
    ]
    if missing:
        raise ConfigError(
            f"Kafka at {log.address} refuses this process. Grant the user of SITE_KAFKA_OPTIONS "
            f"{'; '.join(missing)}; docs/security.md has the commands."
        )


def guard_of(settings: BaseSettings) -> MayReach:
    """What a webhook may reach is what a crawl may: with SITE_ALLOW_PRIVATE_HOSTS all. Raises ConfigError."""
    if options.boolean(settings, "SITE_ALLOW_PRIVATE_HOSTS"):
        return lambda _host, _address: True
    return lambda host, address: not is_metadata_name(host) and is_public(address)
