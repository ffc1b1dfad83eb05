"""Log records without control characters, whichever handler writes them.

Every text of a record passes here: its message, with the arguments filled in, and its traceback.
A message of ours is one line; others, such as Scrapy's tables, keep their line ends.
"""

from __future__ import annotations

import logging
from typing import ClassVar

from site_spider.text import for_log

_OURS = "site_spider"


class EscapedRecord(logging.LogRecord):
    """A record of the standard library, escaped (escape) and with long lines cut."""

    line_prefix: ClassVar[str] = ""  # of each line but the first, which LOG_FORMAT begins

    def getMessage(self) -> str:  # noqa: N802 - the name is logging's
        """The message as it is to be written."""
        text = for_log(super().getMessage(), one_line=self.name.startswith(_OURS))
        return text.replace("\n", f"\n{self.line_prefix}") if self.line_prefix else text

    @property
    def exc_text(self) -> str | None:
        """The traceback, which the first formatter leaves here for itself and the others."""
        return self._exc_text

    @exc_text.setter
    def exc_text(self, text: str | None) -> None:
        lines = [] if text is None else for_log(text, one_line=False).split("\n")
        self._exc_text = "\n".join(self.line_prefix + line for line in lines) if lines else None


def begin_lines_with(prefix: str) -> None:
    """From now on each further line of a record begins so."""
    EscapedRecord.line_prefix = prefix


def install() -> None:
    """From now on all records of this process are of this class; a factory that makes such ones stays."""
    made = logging.getLogRecordFactory()("", logging.NOTSET, "", 0, "", (), None)
    if not isinstance(made, EscapedRecord):
        logging.setLogRecordFactory(EscapedRecord)
