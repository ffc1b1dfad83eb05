"""Failures: by reason, the newest examples, and the dead letters."""

from __future__ import annotations

from collections.abc import Sequence

from site_spider.console.model.fleet import summed
from site_spider.console.pages.view import Document, View, matches, moment
from site_spider.dead_letters.replay import Letter, beginning

_MOST_EXAMPLES = 100
_SHOWN_CHARACTERS = 300
_MOST_ERROR = 500


def failures(
    view: View, dead_letters: Sequence[Letter], topic: str, reason: str = "", wanted: str = ""
) -> Document:
    """The document; `reason` and `wanted` choose examples."""
    states = [seen.state for seen in view.fleet.seen.values()]
    examples = [
        example
        for state in states
        for example in state.examples
        if (not reason or example.reason == reason)
        and matches(wanted, example.url, example.task_id, example.description)
    ]
    examples.sort(key=lambda example: -example.at)
    return view.heading("failures") | {
        "reason": reason,
        "wanted": wanted,
        "reasons": {name: count for name, count in summed(s.failures for s in states).most_common() if count},
        "examples": [example._asdict() | {"at": moment(example.at)} for example in examples[:_MOST_EXAMPLES]],
        "dead_letter_topic": topic,
        "dead_letters": [_letter(letter) for letter in dead_letters],
    }


def _letter(letter: Letter) -> Document:
    message = letter.message
    return {
        "place": f"{message.partition.number}:{message.offset}",
        "origin": letter.origin,
        "failed_at": letter.headers.get("failed_at"),
        "error": (letter.headers.get("error") or "")[:_MOST_ERROR],
        "key": beginning(message.key, _SHOWN_CHARACTERS),
        "value": beginning(message.value, _SHOWN_CHARACTERS),
        "replayed": letter.replayed,
    }
