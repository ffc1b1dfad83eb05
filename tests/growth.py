"""How the cost of some work grows with its size, by the CPU time of this thread.

Seconds depend on the machine and on who else works on it; a ratio of two costs does not. The least of
several runs counts, since others can only make a run slower.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import thread_time

LINEAR = 10.0  # for sizes n and 4 n: 4, more when the larger fits no cache; a quadratic one has 16
CONSTANT = 2.0
_FEWEST_RUNS = 2
_MOST_RUNS = 25


def assert_grows(prepare: Callable[[int], Callable[[], object]], size: int, most: float = LINEAR) -> None:
    """What `prepare` returns for 4 * size costs at most `most` times what it returns for `size`.

    Only the call of what it returns is measured, each time a new one.
    """
    small, large = inf, inf
    for run in range(1, _MOST_RUNS + 1):
        small = min(small, _seconds(prepare(size)))
        large = min(large, _seconds(prepare(4 * size)))
        if run >= _FEWEST_RUNS and large <= most * small:
            return
    raise AssertionError(
        f"{large * 1000:.2f} ms for a size of {4 * size}, {small * 1000:.2f} ms for {size}: "
        f"{large / small:.1f} times as much, and {most:g} are allowed"
    )


def us_a_step(work: Callable[[], object], steps: int) -> float:
    """Microseconds of CPU time of each of so many steps, for a person to read."""
    return 1e6 * _seconds(work) / steps


def _seconds(work: Callable[[], object]) -> float:
    began = thread_time()
    work()
    return thread_time() - began
