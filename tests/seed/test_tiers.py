"""SITE_SEED_TOPICS, and what is no list of tiers."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy.settings import Settings

from site_spider.errors import ConfigError
from site_spider.seed.tiers import Tier, Tiers


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
