"""Makes the allocator return large blocks of memory to the system at once.

The allocator of glibc keeps what it has once given back for blocks of up to 32 MB, and pages of that size
leave holes in it: a process that reads them one after the other grew by 100 MB.
"""

from __future__ import annotations

import ctypes
import sys

LEAST_BYTES = 400_000
_KEPT_BYTES = 16_000_000  # free memory that is kept for small blocks
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt, in malloc.h


def give_back_large_blocks() -> None:
    """For this process; does nothing where the allocator is another one."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, LEAST_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
