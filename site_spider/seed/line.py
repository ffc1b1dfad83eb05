"""A line of a seed file, a URL or a JSON seed, as a message."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from site_spider.page.url import host_of
from site_spider.seed import beside
from site_spider.seed.seed import parse_seed
from site_spider.seed.strict_json import read_object
from site_spider.text import refused

_BLANKS = " \t\r\n\ufeff"  # a byte order mark may open a file


def seed_message(
    line: str,
    *,
    task_id: str | None = None,
    method: str | None = None,
    not_extract: bool = False,
    moved: Callable[[list[str]], None] = lambda _names: None,
    needs_url: bool = True,
) -> tuple[bytes, bytes]:
    """Key (the host, or the id of a seed without a URL) and value (JSON) of the message for a line, checked
    as the crawler will.

    The options fill in where the line says nothing. Fields of meta that stand beside the URL go into meta;
    `moved` hears their names. Raises SeedError.
    """
    text = line.strip(_BLANKS)
    if not text:
        raise refused("line", "empty")
    document: dict[str, Any] = read_object(_utf8(text)) if text.startswith("{") else {"url": text}
    if method is not None and document.get("method") is None:
        document["method"] = method
    meta = document.get("meta")
    names = [name for name in document if name in beside.FIELDS]
    if meta is None or isinstance(meta, dict):  # anything else is for parse_seed to refuse
        gathered = beside.gathered(document, meta or {})
        document = {name: value for name, value in document.items() if name not in names}
        document.update(_with_options(gathered, task_id, not_extract))
    value = _utf8(json.dumps(document, ensure_ascii=False, separators=(",", ":")))
    seed = parse_seed(value, needs_url=needs_url)
    if names:
        moved(names)
    return (host_of(seed.url) or seed.url_id).encode(), value


def _with_options(meta: dict[str, Any], task_id: str | None, not_extract: bool) -> dict[str, Any]:
    """The field `meta` with what the options add; nothing when it is empty even so."""
    filled = dict(meta)
    if task_id is not None and filled.get("task_id") is None:
        filled["task_id"] = task_id
    if not_extract and filled.get("NotExtract") is None:
        filled["NotExtract"] = True
    return {"meta": filled} if filled else {}


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise refused("line", "not UTF-8") from None
