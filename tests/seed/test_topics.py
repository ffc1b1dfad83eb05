"""Tiers of seeds (SITE_SEED_TOPICS), names of topics, and the partition of a key."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.settings import Settings

from site_spider.dead_letter_replay import topic_of
from site_spider.errors import ConfigError
from site_spider.seed.topics import CrawlTopics, Tier, Tiers, partition_of


def tiers(value: Any, topic: str = "seeds") -> Tiers:
    return Tiers.of({"SITE_SEED_TOPIC": topic, "SITE_SEED_TOPICS": value})


@pytest.mark.parametrize("value", ["", "  ", None, []])
def test_without_tiers_there_is_one_topic(value: Any) -> None:
    assert tiers(value, "mine") == Tiers((Tier("mine", 1.0),), "mine")


@pytest.mark.parametrize(
    "value", ["urgent:8,seeds:4,bulk:1", " urgent : 8 , seeds:4,bulk:1.0 ", ["urgent:8", "seeds:4", "bulk:1"]]
)
def test_tiers_have_weights(value: Any) -> None:
    found = tiers(value)
    assert found.weights == {"urgent": 8.0, "seeds": 4.0, "bulk": 1.0}
    assert (found.topics, found.main) == (("urgent", "seeds", "bulk"), "seeds")


def test_seeds_that_name_no_topic_go_to_the_first_where_the_usual_one_is_no_tier() -> None:
    assert tiers("urgent:8,bulk:1").main == "urgent"
    assert tiers("urgent:8,bulk:1", "bulk").main == "bulk"
    assert tiers("urgent:8,bulk:1", "").main == "urgent"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("urgent", "'urgent', which has no weight"),
        (":8", "has no weight"),
        ("urgent:0", "'0'"),
        ("urgent:-1", "'-1'"),
        ("urgent:nan", "'nan'"),
        ("urgent:inf", "'inf'"),
        ("urgent:1e9", "'1e9'"),
        ("urgent:", "''"),
        ("urgent:8,,bulk:1", "''"),
        ("urgent:8;bulk:1", "'8;bulk:1'|urgent:8;bulk"),
        ("a b:1", "'a b'"),
        ("..:1", "'..'"),
        ("urgent:8,bulk:1,urgent:2", "'urgent' twice"),
        ("urgent:8,urgent:8", "'urgent' twice"),
        ({"urgent": 8}, "must be text"),
        (8, "must be text"),
        (",".join(f"t{number}:1" for number in range(17)), "16"),
    ],
)
def test_what_is_no_list_of_tiers_is_refused_with_the_remedy(value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match="SITE_SEED_TOPICS") as caught:
        tiers(value)
    assert any(each in str(caught.value) for each in said.split("|"))


def test_a_seed_topic_that_is_no_tier_is_refused() -> None:
    """Its seeds would never be read; the usual name counts when somebody has set it."""
    with pytest.raises(ConfigError, match="SITE_SEED_TOPIC is 'mine'"):
        tiers("urgent:8,bulk:1", "mine")
    settings = Settings()
    settings.setmodule("site_spider.settings", priority="project")
    settings.set("SITE_SEED_TOPICS", "urgent:8,bulk:1", priority="cmdline")
    assert Tiers.of(settings).main == "urgent"
    settings.set("SITE_SEED_TOPIC", "seeds", priority="cmdline")
    with pytest.raises(ConfigError, match="leave SITE_SEED_TOPIC out"):
        Tiers.of(settings)


# --- how many partitions a topic that is made gets -------------------------------------------------------


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_the_partition_is_that_of_the_c_client(key: bytes, partitions: int) -> None:
    assert partition_of(key, partitions) == confluent_kafka.murmur2(key, partitions)


# --- names of topics -------------------------------------------------------------------------------------

TIERS = {"SITE_SEED_TOPICS": "urgent:8,seeds:4,bulk:1", "SITE_SEED_TOPIC": "urgent"}
NAMED = {
    "SITE_SEED_TOPICS": "a:2,b:1",
    "SITE_TASK_TOPIC": "c",
    "SITE_TASK_EVENTS_TOPIC": "d",
    "SITE_DEAD_LETTER_TOPIC": "e",
    "SITE_STATS_TOPIC": "f",
    "SITE_RESULTS_TOPIC": "g",
    "SITE_ITEMS_TOPIC": "h",
}
DERIVED = ("a.parked", "c.control", "c.pages", "c.clock")


def test_all_names_follow_from_the_main_tier() -> None:
    found = CrawlTopics.of({"SITE_SEED_TOPICS": "urgent:8,seeds:4,bulk:1"})
    assert found[:6] == (
        "urgent", ("urgent", "seeds", "bulk"), "urgent.dead-letters", "urgent.stats", "urgent.tasks",
        "urgent.task-events",
    )  # fmt: skip


@pytest.mark.parametrize("topic", [None, "urgent", "bulk"])
def test_a_tier_has_the_topics_of_its_crawl(topic: str | None) -> None:
    assert CrawlTopics.beside(TIERS, topic) == CrawlTopics.of(TIERS)
    assert topic_of(TIERS, topic) == "urgent.dead-letters"


def test_the_topic_of_another_crawl_has_topics_of_its_own() -> None:
    assert CrawlTopics.beside(TIERS, "news").statistics == "news.stats"
    assert topic_of(TIERS, "news") == topic_of(TIERS, "news.dead-letters") == "news.dead-letters"


@pytest.mark.parametrize(("one", "other"), list(combinations(NAMED, 2)))
def test_two_settings_with_one_topic_are_refused_by_name(one: str, other: str) -> None:
    topic = NAMED[one].partition(":")[0]
    with pytest.raises(ConfigError) as refused:
        CrawlTopics.of(NAMED | {other: topic})
    assert one in str(refused.value)
    assert other in str(refused.value)
    assert repr(topic) in str(refused.value)


@pytest.mark.parametrize("setting", sorted(set(NAMED) - {"SITE_SEED_TOPICS", "SITE_TASK_TOPIC"}))
@pytest.mark.parametrize("derived", [*DERIVED, "b"])
def test_no_setting_names_a_lower_tier_or_a_derived_topic(setting: str, derived: str) -> None:
    with pytest.raises(ConfigError, match=setting):
        CrawlTopics.of(NAMED | {setting: derived})


def test_a_tier_that_is_named_as_a_topic_beside_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"SITE_STATS_TOPIC is 'a\.stats', as SITE_SEED_TOPICS is"):
        CrawlTopics.of({"SITE_SEED_TOPICS": "a:1,a.stats:1"})
