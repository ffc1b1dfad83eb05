"""Loads the classes that settings name: seed log, sinks, stores of statistics, reader."""

from __future__ import annotations

from typing import Any, cast

from scrapy.settings import BaseSettings

from site_spider import options
from site_spider.contracts.seed_log import SeedLog
from site_spider.contracts.sink import ResultReader, Sink, StatisticsStore
from site_spider.engine.scrapy_parts import load_class
from site_spider.errors import ConfigError
from site_spider.results.results import OnDemand
from site_spider.service.config import KAFKA, STATS_TO, exactly_once


def seed_log(settings: BaseSettings) -> SeedLog:
    """Kafka when SITE_KAFKA_BROKERS is set, else the embedded one. Raises ConfigError."""
    kind = "kafka" if options.text(settings, "SITE_KAFKA_BROKERS") else "local"
    loaded = load_class("SITE_SEED_LOG_CLASSES", options.mapping(settings, "SITE_SEED_LOG_CLASSES")[kind])
    return cast(SeedLog, loaded.from_settings(settings))


def sinks(settings: BaseSettings) -> list[Sink]:
    """The sinks of SITE_SINKS in their order, but for what transactions store. Raises ConfigError."""
    names = options.names(settings, "SITE_SINKS")
    if not names:
        raise ConfigError("SITE_SINKS is empty, but must name at least one sink, such as local.")
    found = {name: cast(Sink, _named(settings, "SITE_SINKS", "SITE_SINK_CLASSES", name)) for name in names}
    if exactly_once(settings):
        del found["kafka"]  # its settings have been checked
    return list(found.values())


def item_sinks(settings: BaseSettings) -> list[Sink]:
    """Those of SITE_SINKS that take items, but for what transactions store. Raises ConfigError."""
    names = options.names(settings, "SITE_SINKS")
    classes = {name: _class_named(settings, "SITE_SINKS", "SITE_SINK_CLASSES", name) for name in names}
    found = {
        name: cast(Sink, OnDemand(kind.for_items(settings)))
        for name, kind in classes.items()
        if hasattr(kind, "for_items")
    }
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
    return [_statistics_store(settings, name) for name in names if name != KAFKA]


def _statistics_store(settings: BaseSettings, name: str) -> StatisticsStore:
    kind = _class_named(settings, STATS_TO, "SITE_STATS_CLASSES", name, KAFKA)
    if not hasattr(kind, "for_statistics"):
        raise ConfigError(
            f"{STATS_TO} names {name!r}, which has no class method for_statistics: see docs/observability.md."
        )
    return cast(StatisticsStore, kind.for_statistics(settings))


def reader(settings: BaseSettings, *, of_items: bool = False) -> ResultReader:
    """Reads results (or items) back from the first of SITE_SINKS that can be read. Raises ConfigError."""
    readable = options.mapping(settings, "SITE_READER_CLASSES")
    for name in options.names(settings, "SITE_SINKS"):
        if name in readable:
            kind = load_class("SITE_READER_CLASSES", readable[name])
            return cast(ResultReader, (kind.for_items if of_items else kind.from_settings)(settings))
    raise ConfigError(
        f"SITE_SINKS is {settings.get('SITE_SINKS')!r}, but results can be read back from "
        f"{' or '.join(readable)} only; add one of them."
    )


def _named(settings: BaseSettings, setting: str, classes_setting: str, name: str) -> Any:
    return _class_named(settings, setting, classes_setting, name).from_settings(settings)


def _class_named(settings: BaseSettings, setting: str, classes_setting: str, name: str, *besides: str) -> Any:
    classes = options.mapping(settings, classes_setting)
    if name not in classes and "." not in name:
        raise ConfigError(
            f"{setting} names {name!r}, but must name {', '.join([*classes, *besides])}, or the dotted path "
            "of a class."
        )
    return load_class(setting, classes.get(name, name))
