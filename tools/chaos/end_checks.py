"""Compares the ends of tasks that were told with the record of the site and with what is stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tools.chaos.ends import ToldEnd
from tools.chaos.roster import ChaosTask, Roster
from tools.chaos.verdict import Verdict
from tools.chaos.workload import Page

SLACK_SECONDS = 0.01  # records of the topic tell whole milliseconds
NO_PAGE = ("cancelled", "filtered", "spilled", "dead_letter")  # endings of a seed without one


class TaskEndCheck:
    """The end of each task is told once, not before its last page was fetched, and with the right counts.

    Pages are counted once each, however often they were fetched. A message that is parked while its task is
    resumed may come back twice (docs/tasks.md): it is one more seed of a task that was paused, and no page.
    """

    def __init__(
        self,
        roster: Roster,
        told: Iterable[ToldEnd],
        first: Mapping[str, float],
        pages_of: Callable[[int], Iterator[Page]],
        *,
        may_repeat: bool,
        one_page_a_seed: bool,
    ) -> None:
        self._roster = roster
        self._told = told
        self._first = first  # when the first answer of each URL was sent
        self._pages_of = pages_of
        self._may_repeat = may_repeat  # processes died: the same bytes may be there twice
        self._one_page_a_seed = one_page_a_seed

    def compare(self, verdict: Verdict) -> None:
        """As in Check."""
        told: dict[str, list[ToldEnd]] = defaultdict(list)
        for end in self._told:
            told[str(end.event.get("task_id"))].append(end)
        for task in self._roster.all():
            self._look(verdict, task, told.pop(task.name, []))
        for name in told:
            verdict.complain("the end of a task that there is not", name)

    def _look(self, verdict: Verdict, task: ChaosTask, ends: list[ToldEnd]) -> None:
        if not ends:
            verdict.complain("an end that was never told", task.name)
            return
        values = {end.value for end in ends}
        if len(values) > 1 or (len(ends) > 1 and not self._may_repeat):
            verdict.complain("an end told twice", f"{task.name}: {[end.value for end in ends]}")
        event = ends[0].event
        for mistake in (
            *self._wrong_kind(task, event),
            *self._early(task, ends[0].when, event),
            *self._wrong_counts(task, event, verdict),
        ):
            verdict.complain("the end of a task", f"{task.name}: {mistake}; {ends[0].value.decode()}")

    def _wrong_kind(self, task: ChaosTask, event: Mapping[str, Any]) -> Iterator[str]:
        if event.get("generation") != 1:
            yield f"it is of generation {event.get('generation')}"
        if event["event"] != "done" and not task.is_cancelled:
            yield f"nobody asked for {event['event']}"

    def _early(self, task: ChaosTask, when: float, event: Mapping[str, Any]) -> Iterator[str]:
        for page in self._pages(task):
            fetched = self._first.get(page.url)
            if fetched is None and event["event"] == "done":
                yield f"it was told, but {page.url} was never fetched"
            elif fetched is not None and fetched > when + SLACK_SECONDS:
                yield f"it was told {fetched - when:.3f} s before {page.url} was fetched"

    def _wrong_counts(self, task: ChaosTask, event: Mapping[str, Any], verdict: Verdict) -> Iterator[str]:
        seeds = dict(event["seeds"])
        total, pages, documents = seeds.pop("total", 0), event["pages"], verdict.documents[task.name]
        if total != sum(seeds.values()):
            yield f"the outcomes add up to {sum(seeds.values())}, not to the total of {total}"
        if pages > documents or (pages < documents and event["event"] == "done"):
            yield f"it counts {pages} pages; {documents} are stored"
        yield from self._wrong_seeds(task, seeds, pages)

    def _wrong_seeds(self, task: ChaosTask, seeds: Mapping[str, int], pages: int) -> Iterator[str]:
        endings = sum(seeds.values()) - seeds.get("spilled", 0)
        produced = len(task.seeds)
        if endings < produced:
            yield f"{endings} endings of {produced} seeds"
        if not self._one_page_a_seed:
            return
        if endings > produced and not task.was_paused:
            yield f"{endings} endings of {produced} seeds"
        with_page = sum(seeds.values()) - sum(seeds.get(name, 0) for name in NO_PAGE)
        if with_page < pages or (with_page > pages and not task.was_paused):
            yield f"{with_page} seeds have ended with a page, but {pages} pages are counted"

    def _pages(self, task: ChaosTask) -> Iterator[Page]:
        return (page for seed in task.seeds for page in self._pages_of(seed))


def count_rows(roster: Roster, told: Iterable[ToldEnd]) -> list[tuple[str, object]]:
    """For the table."""
    ends = list(told)
    kinds = Counter(str(event["event"]) for event in {end.value: end.event for end in ends}.values())
    said = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    tasks = roster.all()
    cancelled = sum(task.is_cancelled for task in tasks)
    paused = sum(task.was_paused for task in tasks)
    rows: list[tuple[str, object]] = [
        ("tasks", f"{len(tasks)}, of which {paused} were paused, {cancelled} cancelled"),
        ("ends told", said or "0"),
    ]
    if again := len(ends) - len({end.value for end in ends}):
        rows.append(("ends told twice, byte for byte", again))
    return rows
