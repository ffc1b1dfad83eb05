"""What a fleet did in each stretch of ten seconds of the last hour.

An increase of a counter is spread evenly over the time since the process was heard of before, so
that curves do not depend on how often a process speaks.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping

STEP_SECONDS = 10
_STEPS = 360
_MOST_NAMES = 100  # of reasons, outcomes and causes in one step


class Stretch:
    """One stretch of time; `process_seconds` says for how long how many processes are known in it."""

    __slots__ = ("counts", "gauges", "number", "process_seconds")

    def __init__(self, number: int) -> None:
        self.number = number
        self.counts: Counter[str] = Counter()
        self.gauges: dict[str, float] = {}
        self.process_seconds = 0.0


class Curves:
    """Memory is bounded: steps of one hour, and names in a step."""

    def __init__(self) -> None:
        self._steps: deque[Stretch] = deque()

    def add(self, since: float, until: float, increases: Mapping[str, float]) -> None:
        """What one process did between two moments."""
        since = max(since, until - _STEPS * STEP_SECONDS)
        length = until - since
        if length <= 0:
            return
        for number in range(int(since // STEP_SECONDS), int(until // STEP_SECONDS) + 1):
            begin, end = number * STEP_SECONDS, (number + 1) * STEP_SECONDS
            overlap = min(end, until) - max(begin, since)
            if overlap > 0 and (step := self._step(number)) is not None:
                step.process_seconds += overlap
                _add(step.counts, increases, overlap / length)

    def gauge(self, at: float, values: Mapping[str, float]) -> None:
        """What the whole fleet holds at a moment."""
        step = self._step(int(at // STEP_SECONDS))
        if step is not None:
            step.gauges.update(values)

    def between(self, since: float, until: float) -> Iterator[Stretch]:
        """The steps that lie in a time altogether, in order."""
        first, last = -(-since // STEP_SECONDS), until // STEP_SECONDS
        return (step for step in self._steps if first <= step.number < last)

    def _step(self, number: int) -> Stretch | None:
        """The step of this number, made when it is new; None for one that is forgotten."""
        steps = self._steps
        if not steps or number > steps[-1].number:
            steps.append(Stretch(number))
        elif number <= steps[-1].number - _STEPS:
            return None
        while steps[0].number <= steps[-1].number - _STEPS:
            steps.popleft()
        if steps[-1].number == number:
            return steps[-1]
        return self._older(number)

    def _older(self, number: int) -> Stretch:
        place = next(index for index, step in enumerate(self._steps) if step.number >= number)
        if self._steps[place].number != number:
            self._steps.insert(place, Stretch(number))
        return self._steps[place]


def _add(counts: Counter[str], increases: Mapping[str, float], share: float) -> None:
    for name, increase in increases.items():
        if name in counts or len(counts) < _MOST_NAMES:
            counts[name] += increase * share  # type: ignore[assignment]
