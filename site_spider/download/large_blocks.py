"""Says which blocks of memory the allocator returns to the system at once.

The allocator of glibc keeps what it has once given back for blocks of up to 32 MB, and pages of that size
leave holes in it: a process that reads them one after the other grew by 100 MB. But a block that is
returned is mapped anew the next time, page by page. The Kafka client takes 3.7 MB for each batch that it
compresses: 1 ms of page faults, and up to a quarter of the CPU of a crawl. So these are kept until there are
many large bodies.
"""

from __future__ import annotations

import ctypes
import sys

_KEPT_AT_FIRST, _KEPT_BESIDE_LARGE_BODIES = 4_000_000, 400_000  # bytes of a block, at most
_KEPT_BYTES = 16_000_000  # free memory that is kept for these
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt, in malloc.h


def give_back_large_blocks(*, beside_large_bodies: bool) -> None:
    """From now on, for this process; does nothing where the allocator is another one."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _KEPT_BESIDE_LARGE_BODIES if beside_large_bodies else _KEPT_AT_FIRST)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
