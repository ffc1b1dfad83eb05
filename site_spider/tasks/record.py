"""What is declared of a task: a record of the task topic. Its JSON Schema is made of this model."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
)

from site_spider.errors import SeedError, SiteSpiderError
from site_spider.page.url import check_url
from site_spider.seed.fields import MAX_DEPTH, MAX_ID_BYTES, identifier
from site_spider.sources.model import Part
from site_spider.tasks.pattern_set import PatternSet

MAX_RECORD_BYTES = 1_000_000
MOST_PATTERNS = 1_000
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


def _patterns(patterns: list[str]) -> list[str]:
    PatternSet(patterns)
    return patterns


def _url(text: str) -> str:
    try:
        return check_url(text)
    except SeedError as error:
        raise ValueError(error.reason) from None


def _rate(value: object) -> object:
    """50/s, 300/m and 1000/h are taken as well."""
    match = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    return value if match is None else float(match[1]) / _RATE_SECONDS[match[2]]


TaskId = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID_BYTES), AfterValidator(_task_id)]
Patterns = Annotated[list[str], Field(max_length=MOST_PATTERNS), AfterValidator(_patterns)]
Count = Annotated[int, Field(ge=1, le=MOST)]


class Task(Part):
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
    webhook: Annotated[str, AfterValidator(_url)] | None = Field(None, description="is told of its end")

    def value(self) -> bytes:
        """As the value of its record."""
        return self.model_dump_json(exclude_defaults=True).encode()

    @property
    def key(self) -> bytes:
        """As the key of its record."""
        return self.task_id.encode()


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


def _said(error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"] if not str(part).startswith("function-")) or "record"
    given = (
        "" if isinstance(error["input"], dict | bytes) or len(str(error["input"])) > 80 else error["input"]
    )
    shown = f" is {given!r}" if given != "" else ""
    return f"{place}{shown}: {error['msg'].removeprefix('Value error, ')}"


def schema() -> dict[str, Any]:
    """For editors and producers."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Task.model_json_schema()}
