"""Writes the files of resources/schemas anew: python -m tools.schemas.

The schema of a seed is made of what the parser checks by. It says types, bounds, names that are not allowed
and characters. The parser alone looks at a host's name, a codec's name, lengths in bytes and how the message
is nested.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from site_spider.page.url import MAX_URL_BYTES
from site_spider.seed import fields as check
from site_spider.seed import seed, spilled
from site_spider.sources.model import schema as source_schema
from site_spider.tasks.declaration import schema as task_schema

# In Python $ also stands before a line feed at the end; what follows it here excludes that.
_NO_CONTROL = "^[^\\x00-\\x1f\\x7f-\\x9f]*$(?!\\n)"
_NO_HEADER_CONTROL = "^[^\\x00-\\x08\\x0a-\\x1f\\x7f]*$(?!\\n)"
_NULL = {"type": "null"}
_BOOLEAN = {"type": ["boolean", "null"]}
_VALIDATOR = {"anyOf": [_NULL, {"type": "string", "pattern": f"^({check.VALIDATOR.pattern})$(?!\\n)"}]}
_EMPTY: dict[str, Any] = {"enum": [None, "", [], {}]}


def seed_schema() -> dict[str, Any]:
    """For producers and editors."""
    beside = {name: _META_FIELDS[name] for name in check.BESIDE_THE_URL}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Seed",
        "description": "One message of the seed topic. Other fields are ignored.",
        "type": "object",
        "required": ["url"],
        "properties": {
            "url": _URL,
            "meta": _meta(),
            "method": {"anyOf": [_NULL, _words(check.METHODS)]},
            "_encoding": {"anyOf": [_NULL, {"type": "string", "maxLength": 40}]},
            "headers": _headers(),
            "cookies": _cookies(),
            "body": {"type": ["string", "null"]},
            "priority": _whole(-check.MAX_PRIORITY, check.MAX_PRIORITY),
            "dont_filter": _BOOLEAN,
            "callback": {"anyOf": [_EMPTY, {"type": "string", "pattern": f"^{seed.CALLBACK_NAME.pattern}$(?!\\n)"}]},
            "errback": _EMPTY,
            "cb_kwargs": _EMPTY,
            "flags": _EMPTY,
            **beside,
        },
        "patternProperties": {"^_(?!encoding$)": _EMPTY},
    }


def _whole(minimum: int, maximum: int) -> dict[str, Any]:
    return {"anyOf": [_NULL, {"type": "integer", "minimum": minimum, "maximum": maximum}]}


def _words(words: Iterable[str]) -> dict[str, Any]:
    """In any case."""
    return {"type": "string", "pattern": f"^({'|'.join(map(_in_any_case, sorted(words)))})$(?!\\n)"}


def _in_any_case(word: str) -> str:
    return "".join(f"[{sign.upper()}{sign.lower()}]" if sign.isalpha() else sign for sign in word)


def _identifier(shortest: int) -> dict[str, Any]:
    text = {"type": "string", "minLength": shortest, "maxLength": check.MAX_ID_BYTES, "pattern": _NO_CONTROL}
    return {"anyOf": [_NULL, {"type": "integer"}, text]}


_URL = {
    "type": "string",
    "maxLength": MAX_URL_BYTES,
    "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@\\\\\\s]+([/?#][^\\s\\x00-\\x1f\\x7f-\\x9f]*)?$(?!\\n)",
}
_META_FIELDS: dict[str, Any] = {
    "url_id": _identifier(1),
    "task_id": _identifier(0),
    "parent_url_id": _identifier(0),
    "seed_url_id": _identifier(0),
    "NotExtract": {"anyOf": [_BOOLEAN, _words(("true", "false"))]},
    "depth": _whole(0, check.MAX_DEPTH),
    "dont_redirect": _BOOLEAN,
    "dont_retry": _BOOLEAN,
    "dont_merge_cookies": _BOOLEAN,
    "max_retry_times": _whole(0, seed.MAX_RETRY_TIMES),
    "download_timeout": {
        "anyOf": [_NULL, {"type": "number", "exclusiveMinimum": 0, "maximum": seed.MAX_TIMEOUT_SECONDS}]
    },
    "if_changed": _BOOLEAN,
    "follow_unchanged": _BOOLEAN,
    "etag": _VALIDATOR,
    "last_modified": _VALIDATOR,
    spilled.KEY: {"type": ["object", "null"], "description": "written by processes of the group only"},
    spilled.SIGNATURE_KEY: {"description": "written by processes of the group only"},
}


def _meta() -> dict[str, Any]:
    own = "|".join(key.removeprefix("site_") for key in (spilled.KEY, spilled.SIGNATURE_KEY))
    return {
        "type": ["object", "null"],
        "description": "what the task and the document need; other keys are kept as data",
        "properties": {**_META_FIELDS, **dict.fromkeys(sorted(check.FORBIDDEN_META), False)},
        "patternProperties": {f"^(_|site_(?!({own})$))": False},
    }


def _headers() -> dict[str, Any]:
    text = {"type": "string", "pattern": _NO_HEADER_CONTROL, "maxLength": check.MAX_HEADERS_BYTES}
    forbidden = "|".join(map(_in_any_case, sorted(check.FORBIDDEN_HEADERS)))
    return {
        "type": ["object", "null"],
        "maxProperties": check.MAX_HEADERS,
        "propertyNames": {"pattern": f"^(?!({forbidden})$)[!#$%&'*+.^_`|~0-9A-Za-z-]+$(?!\\n)"},
        "additionalProperties": {"anyOf": [text, {"type": "array", "items": text}]},
    }


def _cookies() -> dict[str, Any]:
    text = {
        "anyOf": [
            {"type": ["number", "boolean"]},
            {"type": "string", "pattern": "^[^;\\x00-\\x1f\\x7f-\\x9f]*$(?!\\n)"},
        ]
    }
    name = {"type": "string", "pattern": "^[^;=\\x00-\\x1f\\x7f-\\x9f]+$(?!\\n)"}
    long = {
        "type": ["object", "null"],
        "required": ["name", "value"],
        "properties": {
            "name": {"anyOf": [name, {"type": ["number", "boolean"]}]},
            "value": text,
            "path": {"anyOf": [_NULL, text]},
            "domain": {"anyOf": [_NULL, text]},
            "secure": _BOOLEAN,
        },
    }
    return {
        "anyOf": [
            _NULL,
            {"type": "object", "maxProperties": check.MAX_HEADERS, "propertyNames": name, "additionalProperties": text},
            {"type": "array", "maxItems": check.MAX_HEADERS, "items": long},
        ]
    }


FOLDER = Path(__file__).resolve().parents[1] / "resources" / "schemas"
FILES = {
    FOLDER / "seed.schema.json": seed_schema,
    FOLDER / "source.schema.json": source_schema,
    FOLDER / "task.schema.json": task_schema,
}


def text(file: Path) -> str:
    return json.dumps(FILES[file](), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for each in FILES:
        each.write_text(text(each), encoding="utf-8")
