"""Finds secrets in settings and removes them from texts and logs.

Errors do not show values that may be secret in the first place. This is for what others write: clients,
Scrapy, tracebacks. A secret is met in several forms, as it was given, percent-encoded or decoded, escaped,
or in the Base64 of a header, so each of them counts.
"""

from __future__ import annotations

import json
import logging
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote

HIDDEN = "***"

_SWITCHES = ("true", "false", "True", "False", "0", "1")  # of settings such as COOKIES_ENABLED

_SHORTEST = 4  # characters; a shorter one would be found in every second word
_LONG_NAME = 8  # of a user without a password: then the name is one, as with tokens
_FEEDS = "FEEDS"  # of Scrapy; its keys are addresses
_SCRAPYS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MAIL_PASS", "DEFAULT_REQUEST_HEADERS", _FEEDS)
_SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?$|secret|token|spill_key|session_token|credential|(api|access|private)_?key$"
    r"|\.key$|key\.(pem|password)$|jaas|oauthbearer\.config|auth|^headers$|cookie|notify_url$",
    re.IGNORECASE,
)
_PAIR = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:\s*\[?\s*"((?:[^"\\]|\\.)*)"')  # of JSON that cannot be read
_LOGIN = re.compile(r"://([^/\s]*@)")  # of an address, up to the last @ of it; names of files may have @, too
_QUERY = re.compile(r"[?&](?:password|passwd|secret|token|api_key)=([^&#\s,]*)", re.IGNORECASE)


class Redaction:
    """Replaces secrets in texts."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret) if len(form) >= _SHORTEST}
        longest_first = sorted(forms, key=len, reverse=True)
        self._secrets = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, text: str) -> str:
        """The text without them."""
        return self._secrets.sub(HIDDEN, text) if self._secrets else text


def masked(name: str, value: object) -> Any:
    """A setting as it may be shown: whatever has a secret name is hidden, in dicts and JSON as well."""
    if isinstance(value, Mapping):
        is_secret = bool(_SECRET_NAME.search(name))
        shown = {key: without_secrets(str(key), _FEEDS, {key: None}) for key in value}
        return {shown[key]: masked(name if is_secret else str(key), inner) for key, inner in value.items()}
    if isinstance(value, str) and value.strip().startswith("{"):
        try:
            return json.dumps(masked(name, json.loads(value)))
        except (ValueError, RecursionError):
            return HIDDEN
    if _SECRET_NAME.search(name) and value and isinstance(value, str | bytes | list | tuple | int):
        return value if str(value) in _SWITCHES else HIDDEN
    if isinstance(value, list | tuple):
        return [masked("", inner) for inner in value]
    return without_secrets(value, name, value) if isinstance(value, str) else value


def without_secrets(text: str, name: str, value: object) -> str:
    """The text without what is secret in one setting."""
    return Redaction(_of_setting(name, value))(text)


def secrets_of(settings: Mapping[str, Any]) -> set[str]:
    """All that is secret in the settings."""
    names = [name for name in settings if name.startswith("SITE_")]
    names += [name for name in _SCRAPYS if name in settings]
    return {secret for name in names for secret in _of_setting(name, settings[name])}


def _of_setting(name: str, value: object) -> Iterator[str]:
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("{"):
            yield from _of_json(text)
        else:
            yield from _of_named(name, text)
            yield from _of_address(text)
    elif name == _FEEDS and isinstance(value, Mapping):
        yield from _of_named("", _LOGIN.findall(" ".join(map(str, value))))
    else:
        yield from _of_named(name, value)


def _of_json(text: str) -> Iterator[str]:
    try:
        yield from _of_named("", json.loads(text))
    except (ValueError, RecursionError):
        for name, value in _PAIR.findall(text):
            yield from _of_named(name, value)


def _of_named(name: str, value: object) -> Iterator[str]:
    """The secrets in a value of this name; whatever has a secret name is one with all that is in it."""
    is_secret = bool(_SECRET_NAME.search(name))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _of_named(name if is_secret else str(key), inner)
    elif isinstance(value, list | tuple):
        yield from _of_pair(value) if is_secret else (one for part in value for one in _of_named("", part))
    elif is_secret and isinstance(value, int) and str(value) not in _SWITCHES:
        yield str(value)
    elif is_secret and isinstance(value, str):
        yield value
        yield from _of_pair(value.split(":", 1))
        yield from value.split()[1:]  # what follows Basic or Bearer
    elif isinstance(value, str):
        yield from _of_address(value)


def _of_pair(pair: Iterable[object]) -> Iterator[str]:
    """Of a user's name, which is none, and what belongs to it."""
    words = [str(word) for word in pair]
    yield from words[1:]
    yield b64encode(":".join(words).encode("utf-8", "replace")).decode()


def _of_address(text: str) -> Iterator[str]:
    yield from _QUERY.findall(text)
    for word in [*text.split(","), text]:
        before, at, _ = word.rpartition("@")
        if not at:
            continue
        login = before.rpartition("://")[2]
        user, colon, password = login.partition(":")
        if colon:
            yield password
            yield from _of_pair([user, password])
            yield from _of_pair([unquote(user), unquote(password)])
        elif len(user) >= _LONG_NAME:
            yield user


def _forms(secret: str) -> set[str]:
    forms = {secret}
    for plain in (secret, unquote(secret), _unescaped(secret)):
        escaped = json.dumps(plain)[1:-1], repr(plain)[1:-1], ascii(plain)[1:-1]
        quoted = quote(plain, safe="", errors="replace"), quote(plain, errors="replace")
        forms.update((plain, *quoted, *escaped))
    return forms


def _unescaped(text: str) -> str:
    """A text of JSON as it was meant."""
    with suppress(ValueError):
        text = json.loads(f'"{text}"')
    return text


# --- redaction: removes secrets of the settings from every log record ------------------------------------
# Scrapy replaces its handler more than once, so the records themselves are looked at. One without a secret
# stays as it is.

_formatter = logging.Formatter()


class RedactingFactory:
    """Makes records as another factory does, without the secrets."""

    def __init__(self, inner: Callable[..., logging.LogRecord], redaction: Redaction) -> None:
        self.inner, self._redaction = inner, redaction

    def __call__(self, *args: Any, **more: Any) -> logging.LogRecord:
        """As logging asks for a record."""
        record = self.inner(*args, **more)
        self._redact_message(record)
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = self._redaction(_formatter.formatException(record.exc_info))
        return record

    def _redact_message(self, record: logging.LogRecord) -> None:
        try:
            # an escaped record's own text may have been cut in the middle of a secret
            message = getattr(record, "unescaped", record.getMessage)()
        except Exception:  # noqa: BLE001 - logging says itself what is wrong with it
            return
        redacted = self._redaction(message)
        if redacted != message:
            record.msg, record.args = redacted, None


def redact_logs(settings: Mapping[str, Any]) -> Redaction:
    """From now on no record has a secret of these settings; returns what does it, for other texts."""
    redaction = Redaction(secrets_of(settings))
    inner = logging.getLogRecordFactory()
    while isinstance(inner, RedactingFactory):
        inner = inner.inner
    logging.setLogRecordFactory(RedactingFactory(inner, redaction))
    return redaction
