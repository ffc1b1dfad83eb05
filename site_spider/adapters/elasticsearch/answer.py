"""Reads Elasticsearch's answers: a verdict for each record, and what an error means.

Another server or a proxy may have answered, so nothing is taken for granted. A record is acknowledged only
by an item that names it, and an answer that contradicts itself says nothing. A record is refused only for
its own sake: a status of 400 or 413 whose error speaks of the document. Everything else (overload, a version
conflict, a closed index, missing rights) may pass later.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from elasticsearch import ApiError, TransportError

from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Verdict
from site_spider.text import cut, escaped

K = TypeVar("K")

Action = Literal["update", "index"]  # a partial update, or the whole document

_REFUSING = {400, 413}
_NOT_THE_RECORDS_FAULT = {
    "index_closed_exception",
    "index_not_found_exception",
    "validation_exception",  # the cluster has no room for one more shard
    "cluster_block_exception",
    "security_exception",
}
_SHOWN_CHARACTERS = 200  # of a reason, and of what came instead of an answer
_MOST_CAUSES = 4

_short = reprlib.Repr()
_short.maxlevel, _short.maxdict, _short.maxlist, _short.maxstring, _short.maxother = 3, 3, 2, 80, 80


class UnexpectedResponse(Exception):
    """An answer that says nothing of the records, and what came instead."""

    def __init__(self, what: str, came: object) -> None:
        super().__init__(f"{what}: {shown(came)}")


def part(answer: object, name: str, kind: type[K]) -> K:
    """A part of an answer. Raises UnexpectedResponse."""
    value = answer.get(name) if isinstance(answer, Mapping) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UnexpectedResponse(f"the answer has no {name}", answer)
    return value


def verdicts_of(answer: object, keys: Sequence[str], action: Action = "update") -> list[Verdict]:
    """One verdict for each key, in order. Raises UnexpectedResponse."""
    has_errors, items = part(answer, "errors", bool), part(answer, "items", list)
    if len(items) != len(keys):
        raise UnexpectedResponse(f"{len(items)} answers to {len(keys)} records", answer)
    verdicts = [verdict_of(_said_of(item, key, action)) for item, key in zip(items, keys, strict=True)]
    if has_errors is all(verdict is ACKNOWLEDGED for verdict in verdicts):
        raise UnexpectedResponse(f"items contradict errors, which is {has_errors}", answer)
    return verdicts


def verdict_of(update: Mapping[str, Any]) -> Verdict:
    """What the answer to one item of a bulk request means."""
    status, error = update["status"], update.get("error")
    if 200 <= status < 300 and not error:
        return ACKNOWLEDGED
    answer = Answer.REJECTED if _is_own_fault(status, error) else Answer.RETRY
    return Verdict(answer, reason_of(status, error))


def reason_of(status: int, error: object) -> str:
    """What went wrong in one line, with the causes, whatever shape they have."""
    causes: list[str] = []
    while error and len(causes) < _MOST_CAUSES:
        if not isinstance(error, Mapping):
            causes.append(shown(error))
            break
        causes.append(f"{shown(error.get('type'))}: {shown(error.get('reason'))}")
        error = error.get("caused_by")
    return f"HTTP {status} {', caused by '.join(causes)}"


def explained(error: Exception) -> str:
    """An error of the client in one line."""
    if isinstance(error, ApiError):
        return reason_of(error.status_code, _words(error) or {"type": "proxy?", "reason": error.message})
    # the client drops the error of the network that its own stands for
    cause = error.__context__ if isinstance(error, TransportError) else None
    behind = f" ({shown(str(cause)) if str(cause) else type(cause).__name__})" if cause else ""
    return f"{type(error).__name__}: {shown(str(error))}{behind}"


def refuses_content(error: ApiError) -> bool:
    """Whether a request was refused for what is in it; a 400 without Elasticsearch's words is a proxy's."""
    return error.status_code == 413 or _is_own_fault(error.status_code, _words(error))


def version_of(template: object) -> int:
    """The version of an index template that the server has; 0 if it says none."""
    inner = template.get("index_template") if isinstance(template, Mapping) else None
    version = inner.get("version") if isinstance(inner, Mapping) else None
    return version if isinstance(version, int) else 0


def shown(value: object) -> str:
    """A short part of it, in one line that a terminal only shows."""
    text = value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else _short.repr(value)
    return cut(escaped(text), _SHOWN_CHARACTERS)


def _said_of(item: object, key: str, action: Action) -> Mapping[str, Any]:
    """The answer to the action on this very key. Raises UnexpectedResponse."""
    said = part(item, action, dict)
    if said.get("_id") != key or not 200 <= part(said, "status", int) <= 599:
        raise UnexpectedResponse(f"the answer says nothing of {shown(key)}", item)
    return said


def _words(error: ApiError) -> Mapping[str, Any]:
    """Elasticsearch's own description of the error; empty if somebody else answered."""
    words = error.body.get("error") if isinstance(error.body, Mapping) else None
    return words if isinstance(words, Mapping) else {}


def _is_own_fault(status: int, error: object) -> bool:
    kind = error.get("type") if isinstance(error, Mapping) else None
    if status not in _REFUSING or not isinstance(kind, str) or kind in _NOT_THE_RECORDS_FAULT:
        return False
    assert isinstance(error, Mapping)
    return "no write index" not in str(error.get("reason"))  # an alias that is not ready to be written to
