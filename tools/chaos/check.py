"""The check of what came out: compares what is stored, told and requested with what the site serves."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from site_spider.contracts.seed_log import Message
from site_spider.errors import TopicMissing
from site_spider.service import config as parts
from tools.chaos.feed import ChaosTask, Page, ToldEnd, root_id, told_ends
from tools.chaos.pages import ITEMS_OF_A_PAGE, item_text
from tools.chaos.storm import Stage, Storm
from tools.deployment.deployment import Deployment
from tools.site.expected import expected

CANCELLED = "CancelledError:"  # begins the description of what was cancelled
MOST_EXAMPLES = 5
SLACK_SECONDS = 0.01  # records of the topic tell whole milliseconds
NO_PAGE = ("cancelled", "filtered", "spilled", "dead_letter")  # endings of a seed without one
Stored = tuple[str, dict[str, Any]]  # a document and its key


@dataclass
class Check:
    """What is expected, and what was found.

    A page's link back to the root can reach a process that has not met the root, because the one that had was
    killed, and what that knew with it: then the root has a second document, as any link has.
    """

    wanted: Sequence[Page]
    is_once: bool = True
    roots_come_again: bool = False
    cancelled: Collection[str] = ()  # tasks
    each_cancelled: bool = False  # what is cancelled has a document that says so

    results: int = 0  # documents that are right
    lost: set[int] = field(default_factory=set)  # seeds with a page without a document, and no dead letter
    twice: int = 0  # requests beyond one for each page
    answered: set[str] = field(default_factory=set)  # pages; a root that comes again has two documents
    documents: Counter[str] = field(default_factory=Counter)  # different pages that were answered, by task
    told_cancelled: Counter[str] = field(default_factory=Counter)  # documents that say so, by task
    rows: list[tuple[str, object]] = field(default_factory=list)  # for the table
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # of the kinds of `wrong`

    def complain(self, kind: str, text: str) -> None:
        """Something is wrong; only the first of a kind are told."""
        self.counts[kind] += 1
        if self.counts[kind] <= MOST_EXAMPLES:
            self.wrong.append(f"{kind}: {text}")

    def _roots_again(self) -> dict[str, Page]:
        roots = (page for page in self.wanted if page.is_root and self.roots_come_again)
        return {page.key_of_link: page for page in roots}

    # --- documents and items ------------------------------------------------------------------

    def check_documents(self, stored: Iterable[Stored], dead_letters: Collection[str] = ()) -> None:
        """Every page has its document, and is stored once; or its seed is a dead letter."""
        pages, again = {page.key: page for page in self.wanted}, self._roots_again()
        times: Counter[str] = Counter()
        for key, document in stored:
            page = pages.get(key) or again.get(key)
            if page is None:
                self.complain("a document that nothing asked for", key)
                continue
            times[key] += 1
            if times[key] == 1:
                self._look(page, document, is_wanted=key in pages)
            elif self.is_once:
                self.complain("a document twice", f"{key}, {page.url}")
        if second := sum(key in again for key in times):
            self.rows.append(("roots with a second document, as links", second))
        for page in (page for key, page in pages.items() if key not in times):
            may_lack = page.task in self.cancelled and not (self.each_cancelled and page.is_root)
            if page.key not in dead_letters and not may_lack:
                self.lost.add(page.seed)
                self.complain("lost", f"seed {page.seed}, {page.url}")

    def _look(self, page: Page, document: Mapping[str, Any], *, is_wanted: bool) -> None:
        if page.task in self.cancelled and str(document.get("description")).startswith(CANCELLED):
            self.told_cancelled[page.task] += 1
            return
        if page.key not in self.answered:
            self.answered.add(page.key)
            self.documents[page.task] += 1
        wrong = expected(page.url, extract=False).mismatches(document)
        if is_wanted:
            origin = document.get("seed_url_id"), document.get("task_id")
            meant = None if page.is_root else root_id(page.seed), page.task
            if origin != meant:
                wrong = [*wrong, f"seed_url_id and task_id are {origin}, expected {meant}"]
            self.results += not wrong
        for mistake in wrong:
            self.complain("a wrong document", f"{page.url}: {mistake}")

    def check_items(self, stored: Iterable[Stored]) -> None:
        """Every page has its items, each once."""
        pages = {page.key: page for page in self.wanted} | self._roots_again()
        texts = {
            f"{key}-{place}": item_text(page.url, place)
            for key, page in pages.items()
            for place in range(1, ITEMS_OF_A_PAGE + 1)
        }
        times: Counter[str] = Counter()
        for key, document in stored:
            times[key] += 1
            if key not in texts:
                self.complain("an item that nothing asked for", key)
            elif document.get("text") != texts[key]:
                self.complain("a wrong item", f"{key} says {document.get('text')!r}, expected {texts[key]!r}")
            elif times[key] > 1 and self.is_once:
                self.complain("an item twice", f"{key}, {texts[key]}")
        for page in self.wanted:
            if page.task in self.cancelled:
                continue
            for place in range(1, ITEMS_OF_A_PAGE + 1):
                if f"{page.key}-{place}" not in times:
                    self.complain("a lost item", f"{page.key}-{place} of {page.url}")
        self.rows.append(("items", len(times)))

    def check_dead_letters(self, letters: Iterable[Message]) -> None:
        """There are none: all seeds are valid."""
        for letter in letters:
            reason = dict(letter.headers).get("error", b"?").decode(errors="replace")
            self.complain("a dead letter", f"{reason}: {(letter.value or b'')[:120]!r}")

    def check_requests(self, asked: Counter[str]) -> None:
        """How often pages were requested, and that nothing else was."""
        known = {page.url for page in self.wanted}
        self.twice = sum(count - 1 for url, count in asked.items() if url in known)
        for url in asked.keys() - known:
            self.complain("a request that nothing asked for", url)

    # --- ends of tasks ------------------------------------------------------------------------

    def check_ends(
        self,
        tasks: Mapping[str, ChaosTask],
        told: Sequence[ToldEnd],
        first: Mapping[str, float],
        *,
        may_repeat: bool,
        one_page_a_seed: bool,
    ) -> None:
        """Each is told once, not before its last page was fetched (`first`), and with the right counts.

        Pages are counted once each, however often they were fetched. A message that is parked while its task
        is resumed may come back twice (docs/tasks.md): it is one more seed of a task that was paused, and no
        page. Where processes died, `may_repeat`: the same bytes may be there twice.
        """
        ends: dict[str, list[ToldEnd]] = defaultdict(list)
        for end in told:
            ends[str(end.event.get("task_id"))].append(end)
        urls: dict[str, list[str]] = defaultdict(list)
        for page in self.wanted:
            urls[page.task].append(page.url)
        for name, task in tasks.items():
            mine = ends.pop(name, [])
            if not mine:
                self.complain("an end that was never told", name)
                continue
            if len({end.value for end in mine}) > 1 or (len(mine) > 1 and not may_repeat):
                self.complain("an end told twice", f"{name}: {[end.value for end in mine]}")
            for mistake in (
                *_wrong_time(task, mine[0], urls[name], first),
                *self._wrong_counts(task, mine[0].event, one_page_a_seed=one_page_a_seed),
            ):
                self.complain("the end of a task", f"{name}: {mistake}; {mine[0].value.decode()}")
        for name in ends:
            self.complain("the end of a task that there is not", name)
        self._add_rows(tasks.values(), told)

    def _wrong_counts(self, task: ChaosTask, event: Mapping[str, Any], *, one_page_a_seed: bool) -> Iterator[str]:
        seeds = dict(event["seeds"])
        total, pages, documents = seeds.pop("total", 0), event["pages"], self.documents[task.name]
        if total != sum(seeds.values()):
            yield f"the outcomes add up to {sum(seeds.values())}, not to the total of {total}"
        if pages > documents or (pages < documents and event["event"] == "done"):
            yield f"it counts {pages} pages; {documents} are stored"
        endings, produced = sum(seeds.values()) - seeds.get("spilled", 0), len(task.seeds)
        if endings < produced or (endings > produced and one_page_a_seed and not task.was_paused):
            yield f"{endings} endings of {produced} seeds"
        with_page = sum(seeds.values()) - sum(seeds.get(name, 0) for name in NO_PAGE)
        is_wrong = with_page < pages or (with_page > pages and not task.was_paused)
        if one_page_a_seed and is_wrong:
            yield f"{with_page} seeds have ended with a page, but {pages} pages are counted"

    def _add_rows(self, tasks: Collection[ChaosTask], told: Sequence[ToldEnd]) -> None:
        different = {end.value: end.event for end in told}
        kinds = Counter(str(event["event"]) for event in different.values())
        cancelled, paused = sum(t.is_cancelled for t in tasks), sum(t.was_paused for t in tasks)
        self.rows += [
            ("tasks", f"{len(tasks)}, of which {paused} were paused, {cancelled} cancelled"),
            ("ends told", ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "0"),
        ]
        if again := len(told) - len(different):
            self.rows.append(("ends told twice, byte for byte", again))


def _wrong_time(task: ChaosTask, end: ToldEnd, urls: Iterable[str], first: Mapping[str, float]) -> Iterator[str]:
    event = end.event
    if event.get("generation") != 1:
        yield f"it is of generation {event.get('generation')}"
    if event["event"] != "done" and not task.is_cancelled:
        yield f"nobody asked for {event['event']}"
    for url in urls:
        fetched = first.get(url)
        if fetched is None and event["event"] == "done":
            yield f"it was told, but {url} was never fetched"
        elif fetched is not None and fetched > end.when + SLACK_SECONDS:
            yield f"it was told {fetched - end.when:.3f} s before {url} was fetched"


def stored(deployment: Deployment, *, of_items: bool) -> Iterator[Stored]:
    """Results or items, as often as they are there; of topics as a reader of committed messages sees them."""
    if deployment.settings["SITE_SINKS"] == "kafka":
        topic = deployment.settings["SITE_ITEMS_TOPIC" if of_items else "SITE_RESULTS_TOPIC"]
        with suppress(TopicMissing):
            for message in deployment.log.read(topic):
                yield (message.key or b"").decode(), json.loads(message.value or b"{}")
        return
    with closing(parts.reader(deployment.scrapy_settings, of_items=of_items)) as reader:
        for document in reader.search(limit=None):  # there may be more than fit into memory
            yield str(document.get("_id" if of_items else "url_id")), document


def checked(stage: Stage, storm: Storm) -> Check:
    """All of a run. The documents come first: the ends of tasks count by them."""
    options, deployment = stage.options, stage.deployment
    check = Check(
        stage.wanted(),
        is_once=options.sink != "kafka" or options.exactly_once,
        # After a death the links of a tree are spilled, to processes that may not share the dupefilter.
        roots_come_again=options.tree > 1 and options.settings.get("SITE_DUPEFILTER", "memory") != "redis",
        cancelled={task.name for task in stage.tasks.values() if task.is_cancelled},
        each_cancelled=deployment.settings.get("SITE_CANCELLED_RESULTS") == "true",
    )
    letters, asked = deployment.dead_letters(), set()
    for letter in letters:
        with suppress(ValueError, KeyError, TypeError):
            asked.add(str(json.loads(letter.value or b"")["meta"]["url_id"]))
    check.check_documents(stored(deployment, of_items=False), asked)
    check.check_dead_letters(letters)
    check.check_requests(stage.site.read_on())
    if options.items:
        check.check_items(stored(deployment, of_items=True))
    if options.tasks:
        check.check_ends(
            stage.tasks,
            list(told_ends(deployment)),
            stage.site.first,
            may_repeat=bool(stage.deaths or any(storm.counts.values())),
            one_page_a_seed=options.tree == 1,
        )
        check.rows.append(("commands of tasks that failed and were run again", stage.commands.failures))
    return check
