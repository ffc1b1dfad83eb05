"""Which seeds may have killed their process, and in how many deaths each took part.

Theory. A process that dies leaves commits that say "alive"; the next owner of the partition
then knows of a death. It counts one for every seed below the committed position that is not
complete: that much may have been under way. From then on care is taken with these (`is_careful`):
few of them are admitted at a time, and which ones is committed before they begin, so a further
death counts for those that were admitted and for no other.

A seed at DEATHS_TO_ISOLATE is a suspect. Suspects are done one by one, with nothing else under
way in the process; which one is alone is committed before it begins, and that it has ended before
anything else begins. A seed that was alone at DEATHS_ALONE deaths is the culprit. More than one,
because an operator's kill -9 can hit any seed; twice the same one alone hardly ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from site_spider.ledger import varints

DEATHS_TO_ISOLATE = 3
DEATHS_ALONE = 2

# The position that was committed last may be older than what was begun at the death.
CAREFUL_OFFSETS = 2_000
_MOST_NAMED = 64  # seeds of two deaths, and of three: what is named has to fit into a commit


class Suspicion(NamedTuple):
    """What is known of one partition. Offsets are absolute, and those in tuples ascend.

    `alone` is the offset of the seed that was last done alone and has not ended (-1: none), and
    `alone_deaths` how many deaths it was alone at. It is alone now if it is among the admitted.
    """

    below: int = 0  # what is incomplete below it took part in a death; 0: nothing did
    twice: tuple[int, ...] = ()  # took part in two
    thrice: tuple[int, ...] = ()  # in DEATHS_TO_ISOLATE or more
    alone: int = -1
    alone_deaths: int = 0

    def after_death(self, position: int, admitted: Collection[int]) -> Suspicion:
        """One more death: of those that care is taken with, the `admitted` were under way."""
        if self.alone in admitted:
            # nothing else was under way in the process: this one alone took part
            return self._replace(alone_deaths=self.alone_deaths + 1)
        known = {*self.twice, *self.thrice}
        twice = {*self.twice, *(offset for offset in admitted if offset < self.below)}
        thrice = {*self.thrice, *known.intersection(admitted)}
        return self._replace(
            below=max(self.below, position), twice=_lowest(twice - thrice), thrice=_lowest(thrice)
        )

    def deaths(self, offset: int) -> int:
        """How many deaths an incomplete seed has taken part in, at most DEATHS_TO_ISOLATE."""
        if offset in self.thrice:
            return DEATHS_TO_ISOLATE
        return 2 if offset in self.twice else int(offset < self.below)

    def is_careful(self, offset: int) -> bool:
        """Whether a seed is to be admitted, and committed, before it begins."""
        return self.below > 0 and offset < self.below + CAREFUL_OFFSETS

    def is_suspect(self, offset: int) -> bool:
        """Whether a seed has to be done alone."""
        return offset in self.thrice

    def is_culprit(self, offset: int) -> bool:
        """Whether a seed is to be set aside."""
        return offset == self.alone and self.alone_deaths >= DEATHS_ALONE

    def isolating(self, offset: int) -> Suspicion:
        """A suspect is about to be done alone."""
        return self if offset == self.alone else self._replace(alone=offset, alone_deaths=0)

    def acquitted(self) -> Suspicion:
        """The culprit was found: the others were there by chance, but for suspects, which are few."""
        return self._replace(below=0, twice=())

    def without(self, offsets: Collection[int]) -> Suspicion:
        """These have ended."""
        alone = (-1, 0) if self.alone in offsets else (self.alone, self.alone_deaths)
        twice = tuple(offset for offset in self.twice if offset not in offsets)
        thrice = tuple(offset for offset in self.thrice if offset not in offsets)
        return Suspicion(self.below, twice, thrice, *alone)

    def is_empty(self, watermark: int) -> bool:
        """Whether nothing incomplete is under suspicion."""
        return max(self.below - 1, self.alone, *self.twice, *self.thrice) < watermark


NO_SUSPICION = Suspicion()


def _lowest(offsets: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(offsets)[:_MOST_NAMED])


def encode(suspicion: Suspicion, watermark: int) -> str:
    """Numbers relative to the watermark; empty when nothing incomplete is under suspicion."""
    if suspicion.is_empty(watermark):
        return ""
    numbers = (
        max(0, suspicion.below - watermark),
        max(-1, suspicion.alone - watermark),
        suspicion.alone_deaths,
    )
    named = (varints.ascending_to_text(each, watermark) for each in (suspicion.twice, suspicion.thrice))
    return ",".join((*map(str, numbers), *named))


def decode(text: str, watermark: int) -> Suspicion:
    """The inverse of `encode`. Raises ValueError for a text that is not one."""
    if not text:
        return NO_SUSPICION
    *numbers, twice, thrice = text.split(",")
    below, alone, alone_deaths = map(int, numbers)
    if min(below, alone + 1, alone_deaths) < 0:
        raise ValueError(f"not a suspicion: {text!r}")
    if max(below, alone, alone_deaths) > varints.LARGEST:
        raise ValueError(f"not a suspicion: {text!r}")
    return Suspicion(
        watermark + below if below else 0,
        _lowest(varints.ascending_from_text(twice, watermark)),
        _lowest(varints.ascending_from_text(thrice, watermark)),
        watermark + alone if alone >= 0 else -1,
        alone_deaths if alone >= 0 else 0,
    )
