"""What a source says, as pydantic reads it. The JSON Schema for editors is made of these models."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from itertools import islice
from typing import Annotated, Any, Literal, Self

import jmespath as jmes
import re2
from cssselect import SelectorError
from jmespath.functions import Functions
from lxml import etree
from parsel.csstranslator import HTMLTranslator
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    model_validator,
)

from site_spider.text import shown

# --- Regular expressions of users, on RE2: linear in the text, whatever the pattern is -------------------

_LONGEST_PATTERN = 1_000  # characters
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = 8_000_000  # bytes of one compiled pattern; more is refused


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> Any:
    """The pattern. Raises ValueError for what RE2 does not take, such as a look-ahead."""
    if len(pattern) > _LONGEST_PATTERN:
        raise ValueError(f"the pattern has {len(pattern)} characters, but {_LONGEST_PATTERN} at most are taken")
    try:
        return re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        said = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"RE2 does not take the pattern: {said}") from None


class PatternSet:
    """Patterns as one automaton: a text takes the same time whatever their number.

    Raises ValueError for what RE2 does not take, and when they need more memory together.
    """

    def __init__(self, patterns: Sequence[str], options: re2.Options) -> None:
        self._patterns = patterns
        self._set: Any = re2.Set.SearchSet(options)
        for pattern in patterns:
            compiled(pattern)  # with a reason that names the place
            self._set.Add(pattern)
        try:
            self._set.Compile()
            self._set.Match("")
        except (re2.error, RuntimeError) as error:
            raise ValueError(f"the patterns together need more than {options.max_mem} bytes") from error

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def first(self, text: str) -> str | None:
        """The first pattern that is found."""
        text = sound(text)
        try:
            found = self._set.Match(text)
        except (re2.error, RuntimeError):  # this text needs too much memory at once
            found = [n for n, pattern in enumerate(self._patterns) if compiled(pattern).search(text)]
        return self._patterns[min(found)] if found else None


def any_matches(patterns: Iterable[str], text: str) -> bool:
    """Whether one of the patterns is found in the text."""
    text = sound(text)
    return any(compiled(pattern).search(text) for pattern in patterns)


def sound(text: str) -> str:
    """The text without what UTF-8 cannot hold: RE2 works on UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def found(pattern: str, text: str, most: int) -> list[str]:
    """Of each match the first group, or all of it where the pattern has no group; None is left out."""
    expression = compiled(pattern)
    group = 1 if expression.groups else 0
    matches = (match.group(group) for match in islice(expression.finditer(sound(text)), most))
    return [match for match in matches if match is not None]


# --- Selectors of users, compiled once. XPath has no regular expressions here: EXSLT's are not RE2 -------

_LONGEST = 2_000  # characters
_KEPT = 4096  # compiled selectors
_translator = HTMLTranslator()
_WITH_EXPRESSION = ("map", "max_by", "min_by", "sort_by")  # functions of JMESPath; of others `&` would be a value


def _check_length(text: str) -> None:
    if len(text) > _LONGEST:
        raise ValueError(f"it has {len(text)} characters, but {_LONGEST} at most are taken")


@lru_cache(maxsize=_KEPT)
def css(text: str) -> Any:
    """As `xpath`. Raises ValueError."""
    _check_length(text)
    try:
        return xpath(_translator.css_to_xpath(text))
    except (SelectorError, RecursionError) as error:
        raise ValueError(f"{text!r} is no CSS selector: {error}") from None


@lru_cache(maxsize=_KEPT)
def xpath(text: str) -> Any:
    """What gives the elements, texts or value for an element. Raises ValueError."""
    try:
        found = etree.XPath(text, regexp=False, smart_strings=False)
        found(etree.Element("html"))  # a function that does not exist is found here alone
    except (etree.XPathError, RecursionError) as error:
        raise ValueError(f"{text!r} is no XPath: {error}") from None
    return found


@lru_cache(maxsize=_KEPT)
def jmespath(text: str) -> Any:
    """What gives the value for JSON. Raises ValueError."""
    _check_length(text)
    try:
        found = jmes.compile(text)
        _check_nodes(found.parsed)
    except (jmes.exceptions.JMESPathError, RecursionError) as error:
        raise ValueError(f"{text!r} is no JMESPath: {str(error).splitlines()[0]}") from None
    return found


def _check_nodes(parsed: dict[str, Any]) -> None:
    """Raises JMESPathError. jmespath itself looks at functions and their arguments only when they are called."""
    nodes = [{"type": "all", "children": [parsed]}]
    for node in nodes:
        children = [child for child in node["children"] if isinstance(child, dict)]
        nodes += children
        name = node["value"] if node["type"] == "function_expression" else None
        if name is not None and name not in Functions.FUNCTION_TABLE:
            raise jmes.exceptions.UnknownFunctionError(f"there is no function {name}")
        if name not in _WITH_EXPRESSION and any(child["type"] == "expref" for child in children):
            raise jmes.exceptions.JMESPathError(f"& stands in {', '.join(_WITH_EXPRESSION)} alone")


MOST = 100  # of anything that a file lists


def taken_by(read: Callable[[Any], object]) -> AfterValidator:
    """Takes a value that `read` takes."""

    def check(value: Any) -> Any:
        read(value)
        return value

    return AfterValidator(check)


_MOMENT = datetime(2001, 2, 3, 16, 5, 6, 789, tzinfo=UTC)


def _check_date_format(text: str) -> None:
    """Takes one that strptime takes: some are refused by it alone, and only with a date to read."""
    if "%" not in text.replace("%%", ""):
        raise ValueError(f"{text!r} has no directive; write one such as %d.%m.%Y")
    try:
        datetime.strptime(_MOMENT.strftime(text), text)
    except (ValueError, re.error, LookupError) as error:
        raise ValueError(f"{text!r} cannot be used to read dates: {error}") from None


def _yes_or_no(value: object) -> object:
    return _BOOLEANS.get(value, value) if isinstance(value, str) else value


_BOOLEANS = {word: said for said, words in ((True, "yes on"), (False, "no off")) for word in words.split()}


def _named(value: object) -> object:
    """A step without an argument is written as its name alone."""
    return {value: None} if isinstance(value, str) else value


Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
FieldName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")]
Host = Annotated[str, StringConstraints(pattern=r"^(\*\.)?[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?$")]
Topic = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]
HeaderText = Annotated[str, StringConstraints(pattern=r"^[\t\x20-\x7e]{0,4000}$")]
Pattern = Annotated[str, taken_by(compiled)]
Css = Annotated[str, taken_by(css)]
XPath = Annotated[str, taken_by(xpath)]
JmesPath = Annotated[str, taken_by(jmespath)]
DateFormat = Annotated[str, StringConstraints(max_length=200), taken_by(_check_date_format)]
YesOrNo = Annotated[bool, BeforeValidator(_yes_or_no, json_schema_input_type=bool)]
Patterns = Annotated[list[Pattern], Field(max_length=MOST)]


class Part(BaseModel):
    """Whatever is not known is a mistake."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


_WAYS = ("css", "xpath", "jmespath", "jsonld", "script")


class Selection(Part):
    """Where something stands in a page: one of css, xpath, jmespath, jsonld, script."""

    css: Css | None = Field(None, description="CSS selector; ::text and ::attr(name) as in Scrapy")
    xpath: XPath | None = Field(None, description="XPath 1.0")
    jmespath: JmesPath | None = Field(None, description="JMESPath, for JSON pages")
    jsonld: JmesPath | None = Field(None, description="JMESPath, for the list of all JSON-LD objects of a page")
    script: JmesPath | None = Field(
        None, description="JMESPath, for JSON of scripts: by id, or by the name that it is assigned to"
    )

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.ways) != 1:
            raise ValueError(f"give exactly one of {', '.join(_WAYS)}")
        return self

    @property
    def ways(self) -> list[str]:
        """Which of them are given."""
        return [name for name in _WAYS if getattr(self, name) is not None]


class ValueStep(Part):
    """One step of post-processing: exactly one of these."""

    strip: None = Field(None, description="without white space at both ends")
    join: str | None = Field(None, description="all values as one text, with this between them (a space)")
    absolute_url: None = Field(None, description="joined to the page's URL; dropped if not http or https")
    number: Literal[".", ","] | None = Field(None, description="the number in a text; its decimal mark")
    date: DateFormat | None = Field(None, description="ISO 8601, of this strptime format (ISO 8601, RFC 2822)")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError("give exactly one of strip, join, absolute_url, number, date")
        return self

    @property
    def name(self) -> str:
        """Which step it is."""
        (name,) = self.model_fields_set
        return name


_FITTING: dict[str, type | tuple[type, ...]] = {
    "text": str, "integer": int, "number": (int, float), "boolean": bool, "any": object,
}  # fmt: skip


class ItemField(Selection):
    """One field of an item."""

    regex: Pattern | None = Field(None, description="RE2; its first group; alone, on the page's text")
    constant: JsonValue = Field(None, description="this value")
    type: Literal["text", "integer", "number", "boolean", "any"] = "text"
    is_list: YesOrNo = Field(False, alias="list", description="all values, and not the first alone")
    required: YesOrNo = Field(False, description="an item without it is left out, and the result says so")
    default: JsonValue = Field(None, description="the value where nothing is found")
    then: Annotated[
        list[
            Annotated[
                ValueStep,
                BeforeValidator(
                    _named,
                    json_schema_input_type=ValueStep | Literal["strip", "join", "absolute_url", "number", "date"],
                ),
            ]
        ],
        Field(max_length=10),
    ] = Field([], description="post-processing, in this order")

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.is_constant and (self.ways or self.regex is not None):
            raise ValueError(f"a constant has no {', '.join(_WAYS)} or regex beside it")
        if not self.is_constant and (len(self.ways) > 1 or not (self.ways or self.regex is not None)):
            said = ", ".join(_WAYS)
            raise ValueError(f"give one of {said}, regex, constant; regex also beside another")
        if self.required and "default" in self.model_fields_set:
            raise ValueError("a field that is required has no default")
        return self

    @model_validator(mode="after")
    def _has_a_fitting_default(self) -> Self:
        if self.default is None:
            return self
        if self.is_list and not isinstance(self.default, list):
            raise ValueError("default: must be a list, because list is true")
        for value in self.default if self.is_list and isinstance(self.default, list) else [self.default]:
            if not isinstance(value, _FITTING[self.type]) or (
                isinstance(value, bool) and self.type in ("integer", "number")
            ):
                raise ValueError(f"default: {shown(value)} does not fit the type, which is {self.type}")
        return self

    @property
    def is_constant(self) -> bool:
        """Whether it is the same for every item."""
        return "constant" in self.model_fields_set


class ItemRule(Part):
    """One kind of item."""

    urls: Patterns = Field([], description="only on pages whose URL one of these is found in; else on all")
    each: Selection | None = Field(None, description="an item for each of these; else one a page")
    fields: dict[FieldName, ItemField] = Field(min_length=1, max_length=MOST)


class LinkRule(Part):
    """Which links are followed; the first rule that a link meets decides."""

    allow: Patterns = Field([], description="RE2, found in the URL; none: every URL")
    deny: Patterns = []
    css: Css | None = Field(None, description="only links inside of these elements")
    to: Topic | None = Field(None, description="the seed topic that they are sent to, for another group")
    not_extract: YesOrNo = Field(False, description="with `to`: no links are followed from there")

    def takes(self, url: str) -> bool:
        """Whether a link to this URL meets it, wherever it stands."""
        return (not self.allow or any_matches(self.allow, url)) and not any_matches(self.deny, url)


class Pagination(Selection):
    """The next page of a list. It has the depth of the page before."""

    limit: int = Field(1000, ge=1, le=1_000_000, description="pages, with the first")
    stop_when_known: int | None = Field(
        None, ge=1, le=10_000, description="ends when so many entries in a row are stored by an earlier crawl"
    )


def names_of(host: str) -> list[str]:
    """What the list of hosts may call one: its own name first, then the nearest domain with a star."""
    labels = host.split(".")
    return [host, *(f"*.{'.'.join(labels[number:])}" for number in range(1, len(labels)))]


class Match(Part):
    """Which pages it is for: hosts, and of these the URLs."""

    hosts: Annotated[list[Host], Field(min_length=1, max_length=1000)]
    urls: Patterns = Field([], description="RE2, one of them found in the URL; none: every page of the hosts")

    def has_host(self, host: str) -> bool:
        """Whether a host is one of its own: links to it are followed whatever the scope is."""
        return not self._names.isdisjoint(names_of(host))

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.hosts)


class Requests(Part):
    """How its hosts are asked. What a seed says of itself counts more."""

    headers: dict[HeaderName, HeaderText] = Field({}, max_length=MOST)
    cookies: dict[HeaderName, HeaderText] = Field({}, max_length=MOST)
    delay: float | None = Field(None, ge=0, le=3600, description="seconds between requests")
    concurrency: int | None = Field(None, ge=1, le=1000, description="requests at a time")
    seed_headers: YesOrNo = Field(False, description="requests for links have the headers of their seed")
    robots: YesOrNo | None = Field(None, description="keep to robots.txt; else as ROBOTSTXT_OBEY says")


class Source(Part):
    """One file."""

    name: Name
    description: str = ""
    enabled: YesOrNo = True
    match: Match
    request: Requests = Field(default_factory=lambda: Requests.model_validate({}))
    follow: Annotated[list[LinkRule], Field(max_length=MOST)] | None = Field(
        None, description="links to follow; left out: as SITE_LINK_SCOPE says; []: none"
    )
    pagination: Pagination | None = None
    items: Annotated[list[ItemRule], Field(max_length=MOST)] = []

    @model_validator(mode="after")
    def _headers(self) -> Self:
        forbidden = {"host", "cookie", "content-length", "transfer-encoding", "connection", "proxy-authorization"}
        for name in self.request.headers:
            if name.lower() in forbidden:
                raise ValueError(f"request.headers: {name} cannot be set here")
        return self


def schema() -> dict[str, Any]:
    """For editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Source.model_json_schema()}
