"""Fields of meta beside the URL: taken as if they stood in meta."""

from typing import Any

import pytest

from tests.seed.seed_messages import message, parsed, reason_of

BESIDE: dict[str, Any] = {"task_id": "spring", "url_id": "42", "NotExtract": True, "depth": 2}


def test_they_mean_what_they_mean_in_meta():
    """None counts as an unknown field."""
    assert parsed(**BESIDE) == parsed(meta=BESIDE)
    assert parsed(**BESIDE, other=1).unknown_fields == ("other",)


@pytest.mark.parametrize("name", BESIDE)
def test_null_in_one_place_leaves_the_other(name):
    assert parsed(**{name: None}, meta=BESIDE) == parsed(meta=BESIDE)
    assert parsed(**BESIDE, meta={name: None}) == parsed(meta=BESIDE)
    assert parsed(**{name: None}) == parsed()


@pytest.mark.parametrize(
    ("name", "beside", "inside"),
    [
        ("url_id", 42, "42"),
        ("task_id", "7", 7),
        ("NotExtract", "true", True),
        ("NotExtract", False, "False"),
        ("depth", 2, 2),
        ("task_id", "", ""),
    ],
)
def test_the_same_in_both_places_is_no_contradiction(name, beside, inside):
    assert parsed(**{name: beside}, meta={name: inside}) == parsed(meta={name: inside})


@pytest.mark.parametrize(
    ("name", "beside", "inside"),
    [("url_id", "1", "2"), ("task_id", "a", "b"), ("NotExtract", False, True), ("depth", 0, 1)],
)
def test_a_contradiction_is_refused_and_both_are_shown(name, beside, inside):
    reason = reason_of(message(**{name: beside}, meta={name: inside}))
    assert reason.startswith(f"{name}: ")
    assert f"meta.{name} is " in reason


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url_id", ["1"]),
        ("url_id", ""),
        ("url_id", "x" * 513),
        ("url_id", True),
        ("task_id", {"id": 1}),
        ("task_id", "a\nb"),
        ("NotExtract", 1),
        ("NotExtract", "perhaps"),
        ("NotExtract", "true" * 100_000),
        ("depth", -1),
        ("depth", "2"),
        ("depth", 1e9),
        ("depth", True),
    ],
)
def test_a_bad_value_is_refused_as_in_meta(name, value):
    assert f"meta.{name}: " in reason_of(message(**{name: value}))
    assert f"{name}: " in reason_of(message(**{name: value}, meta={name: BESIDE[name]}))


def test_a_meta_that_is_none_is_refused_before():
    assert "meta: a list" in reason_of(message(task_id="x", meta=[]))


@pytest.mark.parametrize("word", ["true", "True", "TRUE", "false", "False"])
def test_true_and_false_in_quotes_are_taken_for_not_extract(word):
    assert parsed(meta={"NotExtract": word}).not_extract is (word.lower() == "true")
    assert parsed(NotExtract=word).not_extract is (word.lower() == "true")


@pytest.mark.parametrize("value", [" true", "yes", "1", "tru", "", "trüe"])
def test_other_words_are_not(value):
    assert "but must be true or false" in reason_of(message(meta={"NotExtract": value}))
