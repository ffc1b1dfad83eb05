"""Keeps secrets of the settings out of the log, whoever writes there."""

from __future__ import annotations

import logging

from scrapy.settings import BaseSettings

from site_spider.core.secrets import Redaction, secrets_of


class RedactingFormatter(logging.Formatter):
    """What another one makes of a record, its traceback included, without the secrets."""

    def __init__(self, inner: logging.Formatter, redaction: Redaction) -> None:
        super().__init__()
        self.inner, self._redaction = inner, redaction

    def format(self, record: logging.LogRecord) -> str:
        """As logging asks."""
        return self._redaction(self.inner.format(record))


def redact_logs(settings: BaseSettings) -> Redaction:
    """Let every handler that there is leave out the secrets; returns what does, for other texts."""
    redaction = Redaction(secrets_of(settings))
    for handler in logging.root.handlers:
        inner = handler.formatter or logging.Formatter()
        while isinstance(inner, RedactingFormatter):
            inner = inner.inner
        handler.setFormatter(RedactingFormatter(inner, redaction))
    return redaction
