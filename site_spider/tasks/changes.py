"""A person's words as a task: fields with short forms, and changes as name=value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from site_spider.tasks.record import BadTask, Task, read_task

_LONGEST_SHOWN = 80  # characters of what is wrong
_SPAN = re.compile(r"(\d{1,9})\s*([smhd])")
_SPAN_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LISTS = ("allow", "deny")
_TEXTS = ("scope", "source", "webhook", "expires", "expires_at", "rate", *_LISTS)
_NOT_SET = ("task_id", "state", "started_at")  # have verbs of their own
SETTABLE = tuple(name for name in (*Task.model_fields, "expires", "max_time") if name not in _NOT_SET)


def declared(task_id: str, fields: Mapping[str, Any], now: datetime) -> Task:
    """A new task of these fields. Raises BadTask."""
    said = {"task_id": task_id, **fields}
    if said["task_id"] != task_id:
        raise BadTask(f"task_id is {said['task_id']!r} in the file, but {task_id!r} on the command line")
    return _read({"started_at": now.isoformat(), **_long_forms(said, now)})


def changed(task: Task, words: Sequence[str], now: datetime) -> Task:
    """The task with changes such as weight=2; an empty value takes a limit away. Raises BadTask."""
    given: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in SETTABLE:
            raise BadTask(f"{word!r} is no change; write name=value, with one of: {', '.join(SETTABLE)}")
        if name in _LISTS:
            given.setdefault(name, [])
            given[name] += [text] if text else []
        else:
            given[name] = _value(name, text)
    fields = json.loads(task.model_dump_json(exclude_defaults=True)) | _long_forms(given, now)
    return _read({name: value for name, value in fields.items() if value is not None})


def anew(task: Task, before: Task) -> Task:
    """The task, declared later than it was before, whatever the clocks say."""
    if before.started_at is None or (task.started_at is not None and task.started_at > before.started_at):
        return task
    try:
        later = before.started_at + timedelta(microseconds=1)
    except OverflowError:
        said = f"{task.task_id!r} was declared at the end of time; say first: scrapy task delete"
        raise BadTask(said) from None
    return task.model_copy(update={"started_at": later})


def in_state(task: Task, state: str) -> Task:
    """The same task, running, paused or cancelled."""
    return task.model_copy(update={"state": state})


def _value(name: str, text: str) -> Any:
    if not text:
        return None
    if name in _TEXTS:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # which the model refuses, with a reason


def _long_forms(fields: dict[str, Any], now: datetime) -> dict[str, Any]:
    """`expires: 2h` is a moment, `max_time: 2h` seconds."""
    fields = dict(fields)
    if "expires" in fields:
        text = fields.pop("expires")
        seconds = None if text is None else span_seconds(moment_or_span(text))
        fields["expires_at"] = text if seconds is None else _moment(now, seconds)
    if "max_time" in fields:
        text = fields.pop("max_time")
        fields["max_seconds"] = None if text is None else span_seconds(span(text))
    return fields


def span(text: object) -> str:
    """A span of time as it was given. Raises BadTask when it is none."""
    if span_seconds(text) is None:
        unit = "its unit is missing" if _is_number(text) else "it is no span of time"
        number = text if _is_number(text) else 15
        raise BadTask(
            f"{text!r:.{_LONGEST_SHOWN}}: {unit}; write {number}s, {number}m, {number}h or {number}d"
        )
    return str(text)


def moment_or_span(text: object) -> str:
    """The same, or a moment, which is checked elsewhere."""
    return span(text) if _is_number(text) else str(text)


def _is_number(text: object) -> bool:
    return isinstance(text, int | float) or (isinstance(text, str) and text.strip().isdecimal())


def _moment(now: datetime, seconds: int) -> str:
    try:
        return (now + timedelta(seconds=seconds)).astimezone(UTC).isoformat()
    except OverflowError:
        raise BadTask(f"expires is {seconds} s from now, which is beyond the years that there are") from None


def span_seconds(text: object) -> int | None:
    """The seconds of 90s, 15m, 2h, 7d; None for anything else."""
    match = _SPAN.fullmatch(text.strip()) if isinstance(text, str) else None
    return None if match is None else int(match[1]) * _SPAN_SECONDS[match[2]]


def _read(fields: Mapping[str, Any]) -> Task:
    try:
        return read_task(json.dumps(fields, default=str))
    except (ValueError, RecursionError) as error:
        raise BadTask(f"the fields of the task cannot be written: {error}") from None
