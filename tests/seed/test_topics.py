"""Topics have one name for all who ask, and no two settings give the same."""

from __future__ import annotations

from itertools import combinations

import pytest

from site_spider.dead_letter_replay import topic_of
from site_spider.errors import ConfigError
from site_spider.seed.tiers import CrawlTopics

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
    assert found == (
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
