"""File descriptors: how many this process may open, and how many of them serve connections to sites.

Without a bound of our own the connections that are kept take all of them, and then whatever needs one
next fails: a connection, a name lookup, a database.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
from pathlib import Path

from scrapy.settings import BaseSettings

from site_spider import options
from site_spider.errors import ConfigError

logger = logging.getLogger(__name__)

_ENOUGH = 65_536  # the hard limit may be a billion
_FEWEST_CONNECTIONS = 4
_OWN = Path("/proc/self/fd")
_LONGEST_CHAIN = 5  # of causes
_SHORTAGE = (errno.EMFILE, errno.ENFILE)


class DescriptorShortage(OSError):
    """No descriptor was left, so nothing was asked. Never a result: it is tried again."""

    def __init__(self) -> None:
        super().__init__(errno.EMFILE, os.strerror(errno.EMFILE))


def raise_limit() -> int:
    """Raise the soft limit towards the hard one. Returns what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def for_connections() -> int:
    """How many connections to sites may be open: what others have, and some to spare, is left out."""
    limit = raise_limit()
    spare = min(96, max(24, limit // 8))  # for name lookups, further servers and files
    return limit - _in_use() - spare


def check_limit(settings: BaseSettings) -> None:
    """Warn when CONCURRENT_REQUESTS cannot be had; raise ConfigError when nearly nothing can.

    Called when the servers are connected and the files open.
    """
    wanted, possible = options.integer(settings, "CONCURRENT_REQUESTS", minimum=1), for_connections()
    if possible >= wanted:
        return
    limit = raise_limit()
    left = max(0, possible)
    said = f"the process may have {limit} open files (ulimit -n), which leaves {left} for connections"
    remedy = f"Raise the hard limit to {limit + wanted - possible} or more"
    if possible < min(wanted, _FEWEST_CONNECTIONS):
        raise ConfigError(f"CONCURRENT_REQUESTS is {wanted}, but {said}. {remedy}.")
    logger.warning(
        "CONCURRENT_REQUESTS is %d, but %s: downloads wait for one. %s, or lower CONCURRENT_REQUESTS.",
        *(wanted, said, remedy),
    )


def is_shortage(error: BaseException | None) -> bool:
    """Whether an error of the system, or its cause, says that descriptors ran out."""
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return False
        if isinstance(error, OSError):  # the text of any other may be a server's
            of_several = error.errno is None and os.strerror(errno.EMFILE) in str(error)  # addresses
            return of_several or error.errno in _SHORTAGE
        error = error.__cause__
    return False


def _in_use() -> int:
    try:
        return sum(1 for _ in _OWN.iterdir())
    except OSError as error:  # none is left to look with, or there is no /proc
        return raise_limit() if is_shortage(error) else 0


def are_short() -> bool:
    """Whether hardly a descriptor is left. Slow."""
    return _in_use() + _FEWEST_CONNECTIONS > raise_limit()
