"""Which modules Scrapy has to load for the command line at hand."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_COMMANDS: Final = "site_spider.commands"


def module_of(arguments: Sequence[str]) -> str:
    """Where Scrapy is to look for the command of a command line: in its own module, or in all of them."""
    name = next((word for word in arguments[1:] if not word.startswith("-")), "")
    is_ours = name.isidentifier() and (Path(__file__).parent / "commands" / f"{name}.py").is_file()
    is_scrapy = Path(arguments[0]).name == "scrapy" if arguments else False
    if not (is_ours and is_scrapy):
        return _COMMANDS
    atexit.register(gc.freeze)  # or Python's collector goes through all that is left: 0.2 s of CPU
    return f"{_COMMANDS}.{name}"
