"""What is declared of a task, in the task topic, and what follows: its phase, its rules, whether a budget is spent."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import re2
from pydantic import (
    AfterValidator,
    AliasChoices,
    AwareDatetime,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
)

from site_spider.errors import SeedError, SiteSpiderError
from site_spider.page.sitemap import is_listing
from site_spider.page.url import check_url, form_of
from site_spider.seed.fields import MAX_DEPTH, MAX_ID_BYTES, identifier
from site_spider.seed.seed import Seed
from site_spider.sources.model import Part, PatternSet, taken_by

MAX_RECORD_BYTES = 1_000_000
MOST_PATTERNS = 1_000
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 32_000_000  # bytes of patterns that are compiled together
_LONGEST_SHOWN = 80  # characters of what is wrong
MOST = 2**53  # what every reader of JSON keeps exactly
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(?:/\s*([smh]))?")
_RATE_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600}


class BadTask(SiteSpiderError):
    """What was declared of a task cannot be used; the message says what and why."""


def _task_id(text: str) -> str:
    try:
        return identifier("task_id", text) or ""
    except SeedError as error:
        raise ValueError(error.reason) from None


def _url(text: str) -> str:
    try:
        return check_url(text)
    except SeedError as error:
        raise ValueError(error.reason) from None


def _rate(value: object) -> object:
    """50/s, 300/m and 1000/h are taken as well."""
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    return value if match is None else float(match[1]) / _RATE_SECONDS[match[2]]


def _names(value: object) -> object:
    """a,b is taken as well."""
    return [word for one in value.split(",") if (word := one.strip())] if isinstance(value, str) else value


_Names = BeforeValidator(_names, json_schema_input_type=list[str] | str)


TaskId = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_BYTES), AfterValidator(_task_id)]
Patterns = Annotated[list[str], Field(max_length=MOST_PATTERNS), taken_by(partial(PatternSet, options=_OPTIONS))]
Count = Annotated[int, Field(ge=1, le=MOST)]


class TaskRecord(Part):
    """What the task topic has, as JSON."""

    def value(self) -> bytes:
        """Without what is as usual."""
        return self.model_dump_json(exclude_defaults=True).encode()


class Task(TaskRecord):
    """One task. What is null is as the settings of the crawl say, or has no limit."""

    task_id: TaskId = Field(description="what seeds name in meta.task_id")
    state: Literal["running", "paused", "cancelled"] = "running"
    started_at: AwareDatetime | None = Field(None, description="when it was declared")
    weight: float = Field(1.0, gt=0, le=1_000_000, description="its share beside other tasks")
    max_pages: Count | None = Field(None, description="pages of the task; then it is paused")
    max_pages_host: Count | None = Field(None, description="pages of one host; then its links are filtered")
    max_bytes: Count | None = Field(None, description="bytes of its pages; then it is paused")
    max_seconds: Count | None = Field(None, description="seconds from its first seed; then it is paused")
    depth: int | None = Field(None, ge=0, le=MAX_DEPTH, description="hops from the seed; else DEPTH_LIMIT")
    scope: Literal["host", "domain", "any"] | None = Field(None, description="else SITE_LINK_SCOPE")
    allow: Patterns = Field([], description="RE2; links are followed only if one is found in the URL")
    deny: Patterns = Field([], description="RE2; seeds and links with one of them in the URL are filtered")
    rate: Annotated[float, Field(gt=0, le=1e9), BeforeValidator(_rate)] | None = Field(
        None, description="pages a second, of all processes together; also as text: 50/s, 300/m"
    )
    expires_at: AwareDatetime | None = Field(None, description="then what has not begun is cancelled")
    source: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")] | None = Field(
        None, description="the source of its seeds, if they name none"
    )
    follow_duplicates: bool = Field(True, description="false: links of a page with `duplicate_of` are left")
    drop_params: Annotated[list[str], taken_by(form_of), _Names] | None = Field(
        None, description="links that differ in these parameters alone are one page; else SITE_DROP_PARAMS"
    )
    webhook: Annotated[str, AfterValidator(_url)] | None = Field(None, description="is told of its end")


def usual_task(task_id: str) -> Task:
    """What goes for a task that nobody has declared."""
    return Task.model_validate({"task_id": task_id})


def read_task(value: bytes | str) -> Task:
    """The task in a JSON text. Raises BadTask, a reason for each mistake."""
    if len(value) > MAX_RECORD_BYTES:
        raise BadTask(f"the record has {len(value)} bytes, but at most {MAX_RECORD_BYTES} are taken")
    try:
        return Task.model_validate_json(value)
    except ValidationError as error:
        raise BadTask("; ".join(map(_said, error.errors()[:5]))) from None


_WRITE = {
    "rate": "; write 50/s, 300/m or 1000/h",
    "expires_at": "; write 90s, 2h, 7d or a moment such as 2030-01-31T12:00Z",
}


def _said(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"] if not str(part).startswith("function-")) or "record"
    given = "" if isinstance(error["input"], dict | bytes) or len(str(error["input"])) > 80 else error["input"]
    shown = f" is {given!r}" if given != "" else ""
    return f"{place}{shown}: {error['msg'].removeprefix('Value error, ')}{_WRITE.get(place, '')}"


def schema() -> dict[str, Any]:
    """For editors and producers."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Task.model_json_schema()}


# --- changes ---------------------------------------------------------------------------------------------
# A person's words as a task: fields with short forms, and changes as name=value.

_SPAN = re.compile(r"(\d{1,9})\s*([smhd])")
_SPAN_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LISTS = ("allow", "deny")
_TEXTS = ("scope", "source", "webhook", "drop_params", "expires", "expires_at", "rate", *_LISTS)
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
    fields = json.loads(task.value()) | _long_forms(given, now)
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
        raise BadTask(f"{text!r:.{_LONGEST_SHOWN}}: {unit}; write {number}s, {number}m, {number}h or {number}d")
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


# --- usage -----------------------------------------------------------------------------------------------
# What one process has done for a task, as it tells the others. Numbers only grow, but for `claimed`.

_MOST_NAMES = 1_000  # of outcomes and of hosts
_COUNTS = ("claimed", "begun", "pages", "bytes", "parked", "sent_on", "links_filtered", "links_cancelled")
Number = Annotated[int, Field(ge=0, le=MOST)]
Numbers = Annotated[dict[str, Number], Field(max_length=_MOST_NAMES)]
_Traps = Annotated[Numbers, BeforeValidator(lambda told: {} if isinstance(told, list) else told)]  # as releases before
PartitionNumber = Annotated[str, Field(pattern=r"^\d{1,9}$")]


class Usage(TaskRecord):
    """Of one process and task."""

    claimed: Number = 0  # pages of the budget that nobody else may take
    begun: Number = 0  # first attempts
    pages: Number = 0  # documents
    bytes: Number = 0  # of their responses
    parked: Number = 0  # messages
    sent_on: Number = 0  # of these: sent to the seed topic as well, because the task went on meanwhile
    links_filtered: Number = 0  # by rules and by budgets of hosts
    links_cancelled: Number = 0
    seeds: Numbers = Field(default_factory=dict)  # by outcome
    hosts: Numbers = Field(default_factory=dict)  # pages claimed of hosts, where there is a budget for them
    traps: _Traps = Field(default_factory=dict)  # links, by pattern

    @property
    def waiting(self) -> int:
        """Messages that only the parked topic has, or had."""
        return max(0, self.parked - self.sent_on)


class Past(Usage):
    """Of processes that are gone; the own records of those in `folded` may be there, and count no more."""

    folded: list[str] = Field(default_factory=list, max_length=_MOST_NAMES)

    @classmethod
    def of(cls, before: Past, gone: Mapping[str, Usage]) -> Past:
        """The sum; `gone` by process."""
        total = Total()
        for name, usage in {"": Usage(**before.model_dump(exclude={"folded"})), **gone}.items():
            total.take(name, usage)
        counts = {name: min(MOST, getattr(total.used, name)) for name in _COUNTS}
        seeds, hosts, traps = map(_largest, (total.used.seeds, total.hosts, total.used.traps))
        return cls(**counts, seeds=seeds, hosts=hosts, traps=traps, folded=list(gone))


def _largest(sums: Mapping[str, int]) -> dict[str, int]:
    return {name: min(MOST, count) for name, count in Counter(sums).most_common(_MOST_NAMES)}


class Pace(TaskRecord):
    """How fast one process is with a task that has a rate."""

    used: Number = 0  # thousandths of a request a second
    is_held: bool = False  # by the rate: it could begin more

    @classmethod
    def of(cls, per_second: float, *, is_held: bool) -> Pace:
        return cls(used=min(MOST, int(1_000 * per_second)), is_held=is_held)

    @property
    def per_second(self) -> float:
        return self.used / 1_000


def _summed(told: object) -> object:
    """Releases before told of each process."""
    return sum(count for count in told.values() if isinstance(count, int)) if isinstance(told, dict) else told


class Returned(TaskRecord):
    """How far the parked messages of a task were put back; counts are of messages."""

    # that processes had told of when all of them were last put back
    waited: Annotated[Number, BeforeValidator(_summed), Field(validation_alias=AliasChoices("waited", "parked"))] = 0
    found: Number = 0  # put back since then, in work that is not at its end, or that nobody had told of
    missing: Number = 0  # that processes had told of, and that are not in the topic
    # of each partition: the first that was not looked at
    offsets: dict[PartitionNumber, Number] = Field(default_factory=dict)
    topic_id: str = ""  # in which topic of this name, where the log can tell; else empty
    by: str = ""  # who is at work; empty: nobody

    @property
    def cleared(self) -> int:
        """Messages that nobody has to look for any more."""
        return self.waited + self.missing


NOTHING = Usage()

_MOST_REASONS = 50
_OTHER = "other"


def bounded(reasons: Mapping[str, int]) -> dict[str, int]:
    """The most frequent names; the others count as one, with what has no name."""
    if nameless := reasons.get(""):
        named = {name: count for name, count in reasons.items() if name}
        reasons = named | {_OTHER: named.get(_OTHER, 0) + nameless}
    if len(reasons) <= _MOST_REASONS:
        return dict(reasons)
    ranked = sorted(reasons, key=lambda name: (name == _OTHER, -reasons[name], name))
    kept = {name: reasons[name] for name in ranked[: _MOST_REASONS - 1] if name != _OTHER}
    return {**kept, _OTHER: sum(reasons.values()) - sum(kept.values())}


class Total:
    """The sum over processes, kept up as they tell; each step costs the same, however many they are."""

    def __init__(self) -> None:
        self.used = NOTHING  # without hosts
        self.waiting = 0  # parked messages
        self.hosts: dict[str, int] = {}  # to be read only
        self.of: dict[str, Usage] = {}  # by process; to be read only

    def take(self, process: str, usage: Usage | None) -> None:
        """What a process has told now; None: nothing of it counts any more."""
        before, after = self.of.get(process, NOTHING), usage or NOTHING
        if usage is None:
            self.of.pop(process, None)
        else:
            self.of[process] = usage
        counts = {name: getattr(self.used, name) - getattr(before, name) + getattr(after, name) for name in _COUNTS}
        seeds = _moved(dict(self.used.seeds), before.seeds, after.seeds)
        traps = _moved(dict(self.used.traps), before.traps, after.traps)
        # sums may be larger than what one may tell
        self.used = Usage.model_construct(**counts, seeds=seeds, traps=traps, hosts={})
        self.waiting += after.waiting - before.waiting
        _moved(self.hosts, before.hosts, after.hosts)


def _moved(sums: dict[str, int], before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    """The sums with `after` instead of `before`; names whose sum is 0 are not kept."""
    if before != after:
        for name in before.keys() | after.keys():
            if count := sums.get(name, 0) - before.get(name, 0) + after.get(name, 0):
                sums[name] = count
            else:
                sums.pop(name, None)
    return sums


# --- phase -----------------------------------------------------------------------------------------------
# What is to be done with the seeds of a task at a moment. No clock is asked: see tasks.board.


class Phase(NamedTuple):
    """running, paused, cancelled or expired; and why, where that is not said by its name."""

    name: str
    reason: str = ""

    @property
    def is_over(self) -> bool:
        """Whether what has not begun ends as cancelled."""
        return self.name in ("cancelled", "expired")


RUNNING = Phase("running")


class TaskTimes(TaskRecord):
    """Which limits of time have passed, by the broker's clock: one record, written by one process."""

    started_at: AwareDatetime | None = None  # of the declaration that this is about
    first_at: AwareDatetime | None = None  # when its first seed had begun
    expired: AwareDatetime | None = None  # the latest `expires_at` that has passed
    spent_seconds: Count | None = None  # the longest `max_seconds` that were spent

    def of(self, task: Task) -> TaskTimes:
        """The same, or nothing when it is about a declaration before this one."""
        return self if self.started_at == task.started_at else TaskTimes(started_at=task.started_at)


NO_TIMES = TaskTimes()


def phase_of(task: Task | None, used: Usage, times: TaskTimes, left: int = 0) -> Phase:
    """The phase; `left` is what this process may still begin of what it has claimed."""
    if task is None:
        return RUNNING
    if task.state == "cancelled":
        return Phase("cancelled")
    if task.expires_at is not None and times.expired is not None and times.expired >= task.expires_at:
        return Phase("expired")
    reason = "by command" if task.state == "paused" else _spent(task, used, times, left)
    return Phase("paused", reason) if reason else RUNNING


def _spent(task: Task, used: Usage, times: TaskTimes, left: int) -> str:
    if task.max_pages is not None and used.claimed - left >= task.max_pages:
        return "page_budget"
    if task.max_bytes is not None and used.bytes >= task.max_bytes:
        return "byte_budget"
    if task.max_seconds is not None and (times.of(task).spent_seconds or 0) >= task.max_seconds:
        return "time_budget"
    return ""


# --- rules -----------------------------------------------------------------------------------------------
# What the rules of a task say of a URL.


class TaskRules:
    """Of one task, its patterns compiled."""

    __slots__ = ("_allow", "_deny", "depth", "form", "scope", "task")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.form = form_of(task.drop_params or ())
        self.depth = task.depth
        self.scope = task.scope
        self._allow = PatternSet(task.allow, _OPTIONS)
        self._deny = PatternSet(task.deny, _OPTIONS)

    def takes(self, seed: Seed) -> bool:
        """As one of both: a link that another process sent on is one still; an attempt that goes on has begun."""
        if seed.spilled is None:
            return self.takes_seed(seed.url)
        return not seed.spilled.is_link or self.takes_link(seed.url, seed.depth, lambda: seed.extra.get("sitemap"))

    def takes_seed(self, url: str) -> bool:
        """Whether a seed may be fetched: it was asked for, so `allow` is not for it."""
        return not self._deny or self._deny.first(url) is None

    def takes_link(self, url: str, depth: int, listed: Callable[[], object] = dict) -> bool:
        """Whether a link may be followed; `listed` gives what a sitemap says: files need no `allow`."""
        if self.depth is not None and depth > self.depth:
            return False
        if self._allow and self._allow.first(url) is None and not is_listing(listed()):
            return False
        return self.takes_seed(url)
