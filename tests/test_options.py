"""Settings are read strictly, and what is wrong is said with the name and the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from site_spider import options
from site_spider.errors import ConfigError


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (options.integer, "12", 12),
        (options.integer, 12.0, 12),
        (options.seconds, "1.5", 1.5),
        (options.boolean, "yes", True),
        (options.boolean, "False", False),
        (options.boolean, None, False),
        (options.text, " x ", "x"),
        (options.names, "a, b,,a", ["a", "b"]),
        (options.names, ["a", "b"], ["a", "b"]),
        (options.mapping, '{"a": 1}', {"a": 1}),
        (options.mapping, "", {}),
    ],
)
def test_a_setting_may_come_as_text(read: Callable[..., Any], value: object, expected: object) -> None:
    """Environment variables and the command line are text."""
    assert read({"NAME": value}, "NAME") == expected


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (options.integer, "many"),
        (options.integer, None),
        (options.integer, "-1"),
        (options.integer, "1.5"),
        (options.integer, 1.5),  # of a settings file
        (options.integer, float("nan")),
        (options.names, 403),
        (options.texts, [1]),
        (options.seconds, "nan"),
        (options.seconds, "inf"),
        (options.seconds, "1e99"),
        (options.seconds, "soon"),
        (options.boolean, "maybe"),
        (options.mapping, "[1]"),
        (options.mapping, "{"),
        (lambda settings, name: options.text(settings, name, required=True), " "),
        (lambda settings, name: options.choice(settings, name, ("a", "b")), "c"),
        (lambda settings, name: options.integer(settings, name, 1, 9), "10"),
        (options.topic, ""),
        (options.topic, "two words"),
        (options.topic, ".."),
        (options.topic, "x" * 250),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(read: Callable[..., Any], value: object) -> None:
    """The message names the setting, so that it can be found."""
    with pytest.raises(ConfigError, match="NAME"):
        read({"NAME": value}, "NAME")
