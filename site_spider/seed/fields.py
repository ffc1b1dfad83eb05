"""Checks of single fields of a seed: a clean value, or SeedError.

Each takes the field's name for the reason and its JSON value. null means absent wherever
it is a possible value at all.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from encodings import normalize_encoding
from encodings.aliases import aliases
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any, Final

from site_spider import meta_keys
from site_spider.errors import SeedError
from site_spider.text import kind, refused, shown

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MAX_HEADERS_BYTES = 65536  # of headers, and again of cookies
MAX_HEADERS = 1_000  # lines; and cookies
VALIDATOR = re.compile(r"[\x21-\x7e\xa0-\xff][\x20-\x7e\xa0-\xff]{0,1023}")
MAX_PRIORITY = 1_000_000
MAX_DEPTH = 10_000
MAX_ID_BYTES = 512  # Elasticsearch's limit for an _id

# Would reach another host than the URL's, hand credentials to a proxy, or break the framing of the request.
FORBIDDEN_HEADERS = frozenset({
    "host", "proxy-authorization", "content-length", "transfer-encoding", "connection", "upgrade", "te",
    "trailer", "keep-alive", "proxy-connection",
})  # fmt: skip

# Each would turn a protection off, or reach for another network path than the operator chose.
FORBIDDEN_META = frozenset({
    "proxy", "bindaddress", "download_slot", "download_maxsize", "http_user", "http_pass",
    "dont_obey_robotstxt", "allow_offsite", "cookiejar",
})  # fmt: skip
MUST_BE_EMPTY = frozenset({"errback", "cb_kwargs", "flags"})  # of Request.to_dict()

# Known by name, so that no name of others becomes an import of a codec or stays in Python's cache, which has no bound.
ENCODINGS = frozenset(aliases) | frozenset(aliases.values()) | {
    "cp1006", "cp720", "cp737", "cp856", "cp874", "iso8859_1", "koi8_t", "koi8_u", "mac_arabic",
    "mac_croatian", "mac_farsi", "mac_romanian", "palmos",
}  # fmt: skip
_WORDS = {"true": True, "false": False}
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # and what is no character
_HEADER_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # a tab is allowed inside a value
_HEADER_CONTROL_BYTES = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")

Cookies = dict[str, str] | list[dict[str, str | bool]]


def is_forbidden(key: str) -> bool:
    """Whether no seed may have this key in its meta."""
    return key in FORBIDDEN_META or key.startswith(("_", meta_keys.PREFIX))


def mapping(field: str, value: object, tell: Callable[[object], str] = shown) -> dict[str, Any]:
    """A JSON object; null is an empty one. `tell` says in the reason what else it is."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise refused(field, f"{tell(value)}, but must be an object")
    return value


def boolean(field: str, value: object) -> bool:
    """true or false; null is false."""
    if value is None:
        return False
    if not isinstance(value, bool):
        raise refused(field, f"{shown(value)}, but must be true or false")
    return value


def flag(field: str, value: object) -> bool:
    """As `boolean`; the words true and false in quotes, in any case, are taken as well."""
    return boolean(field, _WORDS.get(value.lower(), value) if isinstance(value, str) else value)


def _as_whole(value: object) -> object:
    """1.0 is a whole number as well, to JSON Schema and to some producers; beyond 2^53 it may have been rounded."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def integer(field: str, value: object, minimum: int, maximum: int) -> int:
    """A whole number within bounds; null is 0."""
    if value is None:
        return 0
    value = _as_whole(value)
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise refused(field, f"{shown(value)}, but must be a whole number from {minimum} to {maximum}")
    return value


def depth(field: str, value: object) -> int:
    """Hops from the seed; null is 0."""
    return integer(field, value, 0, MAX_DEPTH)


def priority(field: str, value: object) -> int:
    """As Scrapy's, within bounds; null is 0."""
    return integer(field, value, -MAX_PRIORITY, MAX_PRIORITY)


def seconds(field: str, value: object, maximum: int) -> float:
    """A number above 0, up to the maximum."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= maximum:
        raise refused(field, f"{shown(value)}, but must be a number of seconds above 0, up to {maximum}")
    return value


def identifier(field: str, value: object) -> str | None:
    """Text of at most 512 bytes without control characters; numbers become text; null is None."""
    if value is None:
        return None
    value = _as_whole(value)
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str):
        raise refused(field, f"{shown(value)}, but must be a string or a whole number")
    if not text:
        raise refused(field, "empty; give one, or leave it out")
    if _CONTROL.search(text, 0, MAX_ID_BYTES):
        raise refused(field, f"{shown(text)} holds a control character or a lone surrogate")
    if len(text) > MAX_ID_BYTES or len(text.encode()) > MAX_ID_BYTES:
        raise refused(field, f"longer than {MAX_ID_BYTES} bytes: {shown(text)}")
    return text


def optional_identifier(field: str, value: object) -> str | None:
    """As `identifier`, but an empty string is None too."""
    return None if value == "" else identifier(field, value)


def validator(field: str, value: object) -> str:
    """What an answer said of its version, such as `W/"1"`: a line of a header, as it came."""
    if not isinstance(value, str) or not VALIDATOR.fullmatch(value):
        raise refused(field, f"{shown(value)} must be the value of a header, of 1 to 1024 characters of Latin-1")
    return value


def method(value: object) -> str:
    """An HTTP method in upper case; null is GET."""
    if value is None:
        return "GET"
    name = value.upper() if isinstance(value, str) and value.isascii() else value
    if not isinstance(name, str) or name not in METHODS:
        raise refused("method", f"{shown(value)} is not allowed; use one of {', '.join(sorted(METHODS))}")
    return name


def encoding(value: object) -> str:
    """A text encoding that Python knows and that contains ASCII, as given; null is utf-8.

    Others (UTF-16, EBCDIC) are refused: Scrapy encodes the query and the headers with it as well.
    """
    if value is None or value == "utf-8":
        return "utf-8"
    if not isinstance(value, str):
        raise refused("_encoding", f"{shown(value)}, but must be a string")
    if len(value) > 40 or not _contains_ascii(value):
        raise refused("_encoding", f"{shown(value)} is not a known text encoding that contains ASCII")
    return value


@lru_cache(maxsize=256)
def _contains_ascii(name: str) -> bool:
    if not name.isascii() or normalize_encoding(name).lower() not in ENCODINGS:
        return False
    try:
        return _PRINTABLE.encode(name) == _PRINTABLE.encode("ascii")
    except (LookupError, ValueError):  # "hex" and the like are codecs but do not encode text
        return False


def body(value: object, charset: str) -> bytes | None:
    """The request's body in its encoding; None when null."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise refused("body", f"{shown(value)}, but must be a string or null")
    try:
        return value.encode(charset)
    except UnicodeEncodeError as error:
        bad = value[error.start : error.start + 1]
        raise refused("body", f"{shown(bad)} at character {error.start + 1} does not fit {charset}") from None


# What is in headers and cookies is shown nowhere, it may be a password: `kind` says what else they are.


def headers(value: object, charset: str) -> tuple[tuple[str, str], ...]:
    """Name and value of each header in their order; a list of values repeats the header."""
    if not value and (value is None or isinstance(value, dict)):
        return ()
    pairs = tuple(islice(_header_pairs(mapping("headers", value, kind)), MAX_HEADERS + 1))
    if len(pairs) > MAX_HEADERS:
        raise refused("headers", f"more than {MAX_HEADERS}")
    if sum(len(name) + len(text) for name, text in pairs) > MAX_HEADERS_BYTES:
        raise refused("headers", f"more than {MAX_HEADERS_BYTES} bytes")
    size_bytes = sum(len(name) + _check_header_value(name, text, charset) for name, text in pairs)
    if size_bytes > MAX_HEADERS_BYTES:
        raise refused("headers", f"{size_bytes} bytes, but must be at most {MAX_HEADERS_BYTES}")
    return pairs


def _header_pairs(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if not _TOKEN.fullmatch(name):
            raise refused("headers", f"{shown(name.partition(':')[0])} is not a header name")
        if name.lower() in FORBIDDEN_HEADERS:
            raise refused("headers", f"{shown(name)} is not allowed in a seed")
        for text in value if isinstance(value, list) else (value,):
            if not isinstance(text, str):
                raise refused(f"headers.{name}", f"{kind(text)}, but must be a string or a list of them")
            yield name, text


def _check_header_value(name: str, text: str, charset: str) -> int:
    """The value's length in bytes."""
    try:
        encoded = text.encode(charset)
    except UnicodeEncodeError:
        raise refused(f"headers.{name}", f"the value does not fit {charset}") from None
    # Also in bytes: escape sequences of some East Asian encodings are control characters.
    if _HEADER_CONTROL.search(text) or _HEADER_CONTROL_BYTES.search(encoded):
        raise refused(f"headers.{name}", "the value holds a control character")
    return len(encoded)


def cookies(value: object) -> Cookies:
    """Names and values, or Scrapy's longer form: objects with name, value, path, domain, secure."""
    if not value and (value is None or isinstance(value, dict | list)):
        return {}
    if isinstance(value, dict | list) and len(value) > MAX_HEADERS:
        raise refused("cookies", f"{len(value)}, but must be at most {MAX_HEADERS}")
    clean: Cookies
    if isinstance(value, dict):
        clean = {_cookie_name(name): _cookie_text(f"cookies.{name}", v) for name, v in value.items()}
        texts: list[str] = [*clean.keys(), *clean.values()]
    elif isinstance(value, list):
        clean = [_long_cookie(cookie) for cookie in value]
        texts = [text for cookie in clean for text in cookie.values() if isinstance(text, str)]
    else:
        raise refused("cookies", f"{kind(value)}, but must be an object or a list of objects")
    if sum(len(text.encode()) for text in texts) > MAX_HEADERS_BYTES:
        raise refused("cookies", f"more than {MAX_HEADERS_BYTES} bytes")
    return clean


def _long_cookie(value: object) -> dict[str, str | bool]:
    """One cookie of Scrapy's longer form; other keys, such as expiry, have no effect there either."""
    cookie = mapping("cookies", value, kind)
    clean: dict[str, str | bool] = {
        "name": _cookie_name(cookie.get("name")),
        "value": _cookie_text("cookies.value", cookie.get("value")),
    }
    for key in ("path", "domain"):
        if cookie.get(key) is not None:
            clean[key] = _cookie_text(f"cookies.{key}", cookie[key])
    if cookie.get("secure") is not None:
        clean["secure"] = boolean("cookies.secure", cookie["secure"])
    return clean


def _cookie_name(value: object) -> str:
    name = _cookie_text("cookies.name", value)
    if not name or "=" in name:
        raise refused("cookies", "a name is empty or holds an equals sign")
    return name


def _cookie_text(field: str, value: object) -> str:
    if not isinstance(value, str | int | float):  # bool is an int
        raise refused(field, f"{kind(value)}, but must be a string, a number, true or false")
    text = str(value)
    if ";" in text or _CONTROL.search(text):
        raise refused(field, "the text holds a semicolon or a control character")
    return text


# --- strict json: reads the JSON of a seed, more strictly than `json.loads` ------------------------------
# Whatever two readers could take differently is refused, and so is whatever costs more to read than it is
# worth.

MAX_MESSAGE_BYTES = 1_000_000  # this many are refused; Kafka's own default limit is 1,048,588
MAX_NESTING = 32  # objects and lists within each other, the message itself included
MAX_VALUES = 10_000  # objects, lists, strings, numbers, ...: an empty list is two bytes here and 64 in memory
MAX_NUMBER_DIGITS = 308  # what a double can hold; also keeps int() away from its slow and refused lengths

_MUST = 'must be one JSON object in UTF-8, such as {"url": "http://host/path"}'
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(set(range(256)) - _STEP.keys())
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


def read_object(value: bytes | None) -> dict[str, Any]:
    """The JSON object in a message. Raises SeedError, and nothing else, for anything else."""
    if value is None:
        raise refused("tombstone", "the message has no value")
    if len(value) >= MAX_MESSAGE_BYTES:
        raise refused("message", f"{len(value)} bytes, but must be less than {MAX_MESSAGE_BYTES}")
    text = _text(value)
    if value.count(b",") + value.count(b"{") + value.count(b"[") > MAX_NESTING:
        _check_shape(text)
    try:
        document = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise refused("message", f"not JSON: {error.msg} at character {error.pos + 1}; it {_MUST}") from None
    if not isinstance(document, dict):
        raise refused("message", f"{shown(document)}, but {_MUST}")
    if "\\u" in text and _SURROGATE_ESCAPE.search(text):
        _check_surrogates(document)
    return document


def _text(value: bytes) -> str:
    try:
        text = value.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise refused("message", f"not UTF-8 at byte {error.start + 1}; it {_MUST}") from None
    if not text or text.isspace():
        raise refused("message", "empty")
    return text


def _check_shape(text: str) -> None:
    """Bound what the parser makes of a text, in a few passes over it, each of them in C."""
    outside = _outside_strings(text)
    # the first ones tell: more of them are too many values in any case
    brackets = outside.encode().translate(None, _NOT_BRACKETS)[: 4 * MAX_VALUES]
    if max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_NESTING:
        raise refused("message", f"nested deeper than {MAX_NESTING} levels")
    if outside.count(",") + outside.count("{") + outside.count("[") > MAX_VALUES:
        raise _too_many_values()


def _outside_strings(text: str) -> str:
    """The text without its strings, up to where it stops being JSON; the parser reads no further."""
    plain = text.replace("\\\\", "").replace('\\"', "") if "\\" in text else text
    if plain.count('"') > 4 * MAX_VALUES:  # a key and a string for each value
        raise _too_many_values()
    return "".join(plain.split('"')[::2])


def _too_many_values() -> SeedError:
    return refused("message", f"more than {MAX_VALUES} values (objects, lists, strings, numbers, ...)")


def _check_surrogates(document: dict[str, Any]) -> None:
    for name, field in document.items():
        try:
            json.dumps({name: field}, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            why = "holds a lone surrogate (\\ud800 to \\udfff), which is not a character"
            raise refused(name, why) from None


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise refused("message", f"key {shown(twice)} stands twice in one object")
    return found


def _int(digits: str) -> int:
    if len(digits) > MAX_NUMBER_DIGITS:
        raise refused("message", f"a number of {len(digits)} digits is too large")
    return int(digits)


def _float(digits: str) -> float:
    if len(digits) > MAX_NUMBER_DIGITS:
        raise refused("message", f"a number of {len(digits)} digits is too large")
    number = float(digits)
    if math.isinf(number):
        raise refused("message", f"number {shown(digits)} is too large")
    return number


def _constant(name: str) -> Any:
    raise refused("message", f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_constant)


# --- Fields of a seed's meta that producers put beside the URL instead: taken as if they stood in meta ---

CONDITIONS: Final[dict[str, Callable[[str, object], bool | float | str]]] = {
    "if_changed": boolean,
    "follow_unchanged": boolean,
    "etag": validator,
    "last_modified": validator,
}
BESIDE_THE_URL: Final = {
    "task_id": optional_identifier,
    "url_id": identifier,
    "NotExtract": flag,
    "depth": depth,
    **CONDITIONS,
}


def gathered_fields(message: dict[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    """The meta, with what stands beside the URL. Raises SeedError for a contradiction."""
    names = BESIDE_THE_URL.keys() & message.keys()
    if not names:
        return meta
    return meta | {name: _agreed(name, message[name], meta.get(name)) for name in sorted(names)}


def _agreed(name: str, beside: object, inside: object) -> object:
    if beside is None or inside is None:
        return inside if beside is None else beside
    read = BESIDE_THE_URL[name]
    if read(name, beside) != read(f"meta.{name}", inside):
        raise refused(name, f"{shown(beside)}, but meta.{name} is {shown(inside)}; leave one of them out")
    return inside
