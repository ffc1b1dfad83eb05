"""Seeds that may have killed their process: how many deaths each has taken part in.

Theory. A process that dies leaves commits that say "alive"; the next owner of the partition
then knows of a death, and that every seed below the committed position and not complete
took part in it. Seeds are taken in the order of their offsets, so one that was in flight at k
deaths has a lower offset than one that was at fewer: three numbers are enough, the k-th
being the offset below which incomplete seeds have taken part in at least k deaths.

A seed at DEATHS_TO_ISOLATE is a suspect. Suspects are done one by one, with nothing else in
flight in the process; which one is alone is committed before it begins. A seed that was
alone at DEATHS_ALONE deaths is the culprit. More than one, because an operator's kill -9 can
hit any seed; twice the same one alone hardly ever.
"""

from __future__ import annotations

from typing import NamedTuple

DEATHS_TO_ISOLATE = 3
DEATHS_ALONE = 2
_NUMBERS = DEATHS_TO_ISOLATE + 2


class Suspicion(NamedTuple):
    """What is known of one partition. Offsets are absolute.

    `below[k - 1]` bounds the seeds of at least k deaths. `alone` is the offset of the seed
    that is, or was at the death, done alone (-1: none), and `alone_deaths` how many deaths
    it was alone at.
    """

    below: tuple[int, ...] = (0,) * DEATHS_TO_ISOLATE
    alone: int = -1
    alone_deaths: int = 0

    def after_death(self, position: int) -> Suspicion:
        """One more death, with everything incomplete below `position` in flight."""
        if self.alone >= 0:
            # nothing else was in flight in the process: this one alone took part
            return self._replace(alone_deaths=self.alone_deaths + 1)
        bounds = (position, *(min(bound, position) for bound in self.below[:-1]))
        return self._replace(below=tuple(map(max, self.below, bounds)))

    def deaths(self, offset: int) -> int:
        """How many deaths an incomplete seed has taken part in, at most DEATHS_TO_ISOLATE."""
        return sum(offset < bound for bound in self.below)

    def is_suspect(self, offset: int) -> bool:
        """Whether a seed has to be done alone."""
        return offset < self.below[-1]

    def is_culprit(self, offset: int) -> bool:
        """Whether a seed is to be set aside."""
        return offset == self.alone and self.alone_deaths >= DEATHS_ALONE

    def isolating(self, offset: int) -> Suspicion:
        """A suspect is about to be done alone."""
        return self if offset == self.alone else self._replace(alone=offset, alone_deaths=0)

    def cleared(self) -> Suspicion:
        """The seed that was alone has ended."""
        return self._replace(alone=-1, alone_deaths=0)

    def is_empty(self, watermark: int) -> bool:
        """Whether nothing incomplete is under suspicion."""
        return self.below[0] <= watermark and self.alone < watermark


NO_SUSPICION = Suspicion()


def encode(suspicion: Suspicion, watermark: int) -> str:
    """Numbers relative to the watermark; empty when nothing incomplete is under suspicion."""
    if suspicion.is_empty(watermark):
        return ""
    below = [max(0, bound - watermark) for bound in suspicion.below]
    alone = max(-1, suspicion.alone - watermark)
    return ",".join(map(str, (*below, alone, suspicion.alone_deaths if alone >= 0 else 0)))


def decode(text: str, watermark: int) -> Suspicion:
    """The inverse of `encode`. Raises ValueError for a text that is not one."""
    if not text:
        return NO_SUSPICION
    numbers = [int(number) for number in text.split(",")]
    if len(numbers) != _NUMBERS or min(numbers) < -1:
        raise ValueError(f"not a suspicion: {text!r}")
    *below, alone, alone_deaths = numbers
    bounds = tuple(watermark + bound if bound else 0 for bound in below)
    return Suspicion(bounds, watermark + alone if alone >= 0 else -1, alone_deaths)
