"""Removes secrets of the settings from every log record.

Scrapy replaces its handler more than once, so the records themselves are looked at. One without a secret
stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from scrapy.settings import BaseSettings

from site_spider.secrets import Redaction, secrets_of

_formatter = logging.Formatter()


class RedactingFactory:
    """Makes records as another factory does, without the secrets."""

    def __init__(self, inner: Callable[..., logging.LogRecord], redaction: Redaction) -> None:
        self.inner, self._redaction = inner, redaction

    def __call__(self, *args: Any, **more: Any) -> logging.LogRecord:
        """As logging asks."""
        record = self.inner(*args, **more)
        self._redact_message(record)
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = self._redaction(_formatter.formatException(record.exc_info))
        return record

    def _redact_message(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - logging says itself what is wrong with it
            return
        redacted = self._redaction(message)
        if redacted != message:
            record.msg, record.args = redacted, None


def redact_logs(settings: BaseSettings) -> Redaction:
    """From now on no record has a secret of these settings; returns what does it, for other texts."""
    redaction = Redaction(secrets_of(settings))
    inner = logging.getLogRecordFactory()
    while isinstance(inner, RedactingFactory):
        inner = inner.inner
    logging.setLogRecordFactory(RedactingFactory(inner, redaction))
    return redaction
