"""What has happened in a run, as log and sinks saw it, and the checks of it at each step and at the end."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.sites import DAYS, ROBOTS, SCOPE, Page
from tests.simulation.virtual import PROCESS, Machine

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.contracts.sink import Record
from site_spider.ledger import metadata
from site_spider.page.url import page_fingerprint
from site_spider.results.document import OF_MERGED
from site_spider.results.recrawl import CLAIM
from site_spider.seed.seed import parse_seed
from site_spider.tasks import control_log
from site_spider.tasks.ending import EndTold, Producing

if TYPE_CHECKING:
    from tests.simulation.log import SimConsumer
    from tests.simulation.world import Process, World

ITEM = "#item"  # of a page
MOVED = "moved"  # the header of what comes back from the parked topic
TRAP_PAGES, MOST_DAYS = 50, 140  # that make a trap; that one process stores of it
TRAP = "trap cal.test/day/N"  # in the reasons of an end
MOST_DEATHS = 5  # a seed that saw so many may be a dead letter (decision 0008)

FORGOTTEN = -9  # behind no end that counts

Place = tuple[Partition, int]


class Sent(NamedTuple):
    """Who has sent a message, and when."""

    by: Process
    at: float

    @property
    def may_be_untold(self) -> bool:
        """A sender that dies, or loses a partition, may not have told of it: decision 0025."""
        return self.by.is_dead or self.by.lost_at >= self.at


class At(NamedTuple):
    """A message that names a page, and perhaps a task."""

    place: Place
    url: str
    task_id: str | None


class Truth:
    """Fed by the log and the sinks; `violation` of the world hears of what is wrong."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.violation = world.violation
        self.stored: dict[str, Counter[str]] = defaultdict(Counter)  # url -> how often, by sink
        self.documents: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, str] = {}  # of documents
        self.merged: set[str] = set()  # into their canonical page
        self.were_refused: set[str] = set()  # by a sink
        self.additional: dict[str, list[str]] = {}  # of canonical pages
        self.fingerprints: dict[bytes, str] = {}  # of pages
        self.before: dict[Place, Counter[str]] = {}  # how often a page had been stored that is asked for again
        self.dead_letters: dict[Place, str] = {}
        self.set_aside_at: dict[str, float] = {}  # when a URL last became a dead letter
        self.replayed_at = 0.0  # when the last replay began
        self.no_seeds: set[Place] = set()
        self.places: dict[str, list[At]] = defaultdict(list)
        self.sent: dict[Place, Sent] = {}  # by processes
        self.parked: set[tuple[str, str | None]] = set()  # URLs that wait for their task
        self.put_back: set[str] = set()  # seeds and links that had been parked
        self.pages: dict[tuple[str, str | None], int] = {}  # stored or refused for a task: behind how many ends of it
        self.events: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.covered: set[Place] = set()  # that commits say are complete
        self.cancelled: set[str] = set()  # tasks, perhaps
        self.others: set[str] = set()  # pages of the other group
        self.deleted: set[str] = set()  # tasks
        self.restarted: set[str] = set()  # tasks, that nobody has cancelled since
        self.closed: dict[str, dict[int, Mapping[Partition, int]]] = defaultdict(dict)  # by record: below which offsets
        self.ends: set[tuple[str, int]] = set()  # task and generation
        self.produced: Counter[str | None] = Counter()  # seeds, by task
        self.claims: dict[str, str] = {}  # of `scrapy recrawl`, by key
        self.claimed: dict[str, str] = {}  # after which check, by what a seed names: its batch and key
        self.recrawled: set[tuple[str, str]] = set()  # URLs, and after which check of it
        self.was_replayed = False
        self.begun: set[str] = set()  # URLs that were parked behind a redirect or before a retry, which nothing filters
        self._takes = {
            **dict.fromkeys(world.topics.tiers, self._seed),
            world.topics.dead_letters: self._dead_letter,
            world.topics.parked: self._parked,
            world.topics.events: self._event,
            world.topics.control: self._control,
        }

    # --- what the log takes -----------------------------------------------------------------------

    def appended(self, message: Message, sent: Sent | None) -> None:
        if (take := self._takes.get(message.partition.topic)) is not None:
            self.world.trace("append", *message.partition, message.offset)
            if sent is not None:
                self.sent[message.partition, message.offset] = sent
            take(message)

    def _seed(self, message: Message) -> None:
        value = message.value or b""
        if (at := self._named_by(message)) is None:
            if ROBOTS not in value.decode():
                self.no_seeds.add((message.partition, message.offset))
            return
        self.places[at.url].append(at)
        self.world.trace("names", at.url, at.task_id)
        self.parked.discard((at.url, at.task_id))
        if b'"if_changed"' in value and not parse_seed(value, callbacks=None).is_link:
            self.before[at.place] = Counter(self.stored[at.url])
        headers = dict(message.headers)
        if MOVED in headers:
            self.put_back.add(at.url)
        elif CLAIM in headers:
            self.produced[at.task_id] += 1
            claim = at.url, self.claimed[headers[CLAIM].decode()]  # the stored one may be of a later run
            if claim in self.recrawled and not (self.was_replayed or self.world.have_clocks_jumped):
                self.violation("checked twice", at.url)
            self.recrawled.add(claim)

    def _parked(self, message: Message) -> None:
        if (at := self._named_by(message)) is not None:
            self.parked.add((at.url, at.task_id))
            begun = parse_seed(message.value or b"", callbacks=None).spilled
            self.begun |= {at.url} if begun is not None and not begun.is_link else set()

    def _dead_letter(self, message: Message) -> None:
        headers = {name: value.decode() for name, value in message.headers}
        origin = Partition(headers["origin_topic"], int(headers["origin_partition"]))
        self.dead_letters[origin, int(headers["origin_offset"])] = headers["error"]
        if (at := self._named_by(message)) is not None:
            self.set_aside_at[at.url] = Machine.now()

    def _control(self, message: Message) -> None:
        if message.value is None:
            return
        task_id, fact = control_log.read(message)
        if isinstance(fact, Producing) and fact.closes:
            self.closed[task_id][message.offset] = fact.highs
        elif isinstance(fact, EndTold) and (end := (task_id, fact.generation)) not in self.ends:
            self.ends.add(end)  # the first one counts
            if not self.was_replayed:
                self._check_end(task_id, fact.upto)

    def _event(self, message: Message) -> None:
        event = json.loads(message.value or b"")
        task_id = event["task_id"]
        self.world.trace("end of", task_id, event["event"], event["pages"])
        told = [one["generation"] for one in self.events[task_id]]
        if event["generation"] in told and not self.world.deaths:
            self.violation("an end told twice", f"{task_id} generation {event['generation']}")
        self.events[task_id].append(event)
        self.events[task_id].sort(key=lambda told: told["generation"])  # the dead may tell of an earlier one

    def _check_end(self, task_id: str, upto: int) -> None:
        """Nothing is open when an end is decided, but what came after a cancelled task was closed.

        As its records below `upto` say.
        """
        closed = next((highs for at, highs in reversed(self.closed[task_id].items()) if at < upto), {})
        for url, places in self.places.items():
            mine = [at for at in places if at.task_id == task_id]
            for at in mine[:1] if self.world.deaths and self._is_answered(url) else mine:
                is_later = task_id in self.cancelled and at.place[1] >= closed.get(at.place[0], 0)
                is_later |= "recrawls" in self.world.plan.extras and at.place in self.before  # of another generation
                sent = self.sent.get(at.place)
                is_answered = self._is_answered(url) or url in self.were_refused
                is_copy = is_answered and sent is not None and sent.may_be_untold
                if at.place not in self.covered and not (is_later or is_copy):
                    self.violation("an early end", f"{task_id}: {at} is not committed")
        if task_id in self.cancelled and (self.world.deaths or self.world.has_moved):
            return  # the owner before may have parked what its successor has ended as cancelled
        for url in sorted(url for url, parked_for in self.parked if parked_for == task_id):
            if not (self.world.deaths and self._is_answered(url)):  # else a copy that the dead had not told of
                self.violation("an early end", f"{task_id}: {url} is parked")

    def _named_by(self, message: Message) -> At | None:
        try:
            said = json.loads(message.value or b"")
        except ValueError:
            return None
        url = self.world.sites.sources.get(said["url"], said["url"])
        at = At((message.partition, message.offset), url, said.get("meta", {}).get("task_id"))
        return at if url in self.world.sites.pages else None

    # --- what the sinks take ----------------------------------------------------------------------

    def writing(self, process: Process, records: Sequence[Record]) -> None:
        """Who has heard that a seed is another's writes nothing older over what that one has written."""
        if process.is_other:
            return
        for record in records if not self.world.have_clocks_jumped else ():
            url, fetched = str(record.document.get("url")), str(record.document.get("fetched_at") or "")
            there, here = self.documents.get(url, {}), record.document
            is_part = here.get("unchanged") or here.get("additional_urls")
            if is_part or there.get("by") in (None, process.name) or str(there["fetched_at"]) <= fetched:
                continue
            if all(here.get(name, there.get(name)) == there.get(name) for name in ("status", "body")):
                continue  # the same document
            has_heard = process.lost_at < Machine.now()  # the event loop a turn later
            if has_heard and not any(process.owns(at.place[0]) for at in self._above(url)):
                self.violation("an older document over a newer one", f"{url} by {process.name}")

    def refuses(self, record: Record) -> bool:
        if record.document.get("url") not in self.world.sites.refused:
            return False
        self._count((record.document["url"], record.document.get("task_id")))
        self.were_refused.add(record.document["url"])
        return True

    def _count(self, *pages: tuple[str, str | None]) -> None:
        ends = Counter(task_id for task_id, _generation in self.ends)
        self.pages |= {page: ends[str(page[1])] for page in pages}

    def forget(self, task_id: str) -> None:
        """It was deleted: `close` finds its seeds in the topics, and nobody has counted them."""
        self.deleted.add(task_id)
        self.ends -= {one for one in self.ends if one[0] == task_id}
        self.pages |= {page: FORGOTTEN for page in self.pages if page[1] == task_id}
        for known in (self.produced, self.events, self.closed):
            known.pop(task_id, None)

    def check_gone(self, url: str, number: int) -> None:
        """After so many checks of a page that is gone; one more was good again."""
        world, found = self.world, self.documents[url]
        after, deletes = world.plan.settings["SITE_GONE_AFTER"], world.plan.settings["SITE_GONE"] == "delete"
        if url in self.set_aside_at or world.have_clocks_jumped or not world.looks_up or (deletes and world.deaths):
            return
        expected = (number - 1) % after + 1 if deletes else number
        expected = 0 if number < 1 or number > after + 1 else expected
        said = found.get("gone_checks") or 0, bool(found.get("gone_at")), found["is_deleted"]
        is_gone = expected >= after
        if said != (expected, is_gone, is_gone and deletes):
            self.violation("checks count wrongly", f"{url} after {number}, gone after {after}: {said}")

    def store(self, sink: str, record: Record, by: str = "") -> None:
        url = str(record.document.get("url"))
        if record.kind == "item":  # of a page, or an entry of a list
            url = record.document.get("item_id") or record.document["_page"]["url"] + ITEM
        if url.endswith(ROBOTS):
            self._count((url, record.document.get("task_id")))
            self.documents[url] = {"status": record.document.get("status")}
            return
        for one in record.document.get("additional_urls") or ():
            self.merged.add(one)
            self._count(*((one, task_id) for task_id in self.world.sites.tasks_of(one)))
            self.stored[one][sink] += 1
            self.documents.setdefault(one, {"url": one})
        if record.document.keys() <= {*OF_MERGED}:
            self.additional[url] = record.document["additional_urls"]
            return
        if record.kind != "item":
            self._count((url, record.document.get("task_id")))
        is_same = "unchanged" if record.document.get("unchanged") else ""
        self.world.trace("store", sink, url, record.document.get("status"), is_same)
        self.stored[url][sink] += 1
        says_something = record.document.get("status") or record.document.get("description")
        if not (is_same or record.kind == "item" or says_something):
            self.violation("a wrong document", f"{url}: empty")
        checks = record.document["gone_checks"] if record.document.get("gone_at") else 9
        if checks < self.world.plan.settings["SITE_GONE_AFTER"]:
            self.violation("a page is gone too early", url)
        is_part = record.kind != "item" and "body" not in record.document  # of a check: the rest stays
        before = self.documents.get(url, {}) if is_part else {}
        self.documents[url] = {**before, **record.document, "by": by, "is_deleted": record.is_gone}
        if self.keys.setdefault(url, record.key) != record.key:
            self.violation("two documents", f"{url}: {self.keys[url]} and {record.key}")
        is_once = sink == "kafka" and not self.was_replayed and url not in self.world.sites.entries
        if is_once and self.stored[url][sink] > self._times(url.removesuffix(ITEM)):
            self.violation("stored twice", url)

    def _times(self, url: str) -> int:
        """How often a transaction may store a page: once, but for what is asked for, or linked, again."""
        sites, above = self.world.sites, self.world.sites.above(url)
        # a parked message and its offset are no transaction, and two operators may put it back twice
        roots, is_line = [one for one in above if one in sites.seeds], all(len(sites.parents[one]) < 2 for one in above)
        is_once = is_line and self.put_back.isdisjoint(above) and [len(self.places[one]) for one in roots] == [1]
        return 1 if is_once and not sites.parents[roots[0]] else sum(len(self.places.get(page, ())) for page in above)

    def marking(self, fingerprints: Sequence[bytes]) -> None:
        """The dupefilter's store is told that pages are done."""
        if PROCESS.get().is_other:
            return
        if not self.fingerprints:
            scoped = product(self.world.sites.pages, (None, *self.world.task_ids))
            self.fingerprints = {page_fingerprint(url, scope): url for url, scope in scoped}
        for url in filter(None, map(self.fingerprints.get, fingerprints)):
            if not self._is_stored(self.world.sites.sources.get(url, url)):
                self.violation("a mark of a page that is not done", url)

    # --- commits ----------------------------------------------------------------------------------

    def committing(self, consumer: SimConsumer, partition: Partition, position: Position) -> None:
        """The strongest check: what a commit says is complete is compared with what is stored now."""
        self.world.trace("commit", consumer.process.name, *partition, position.offset)
        before = consumer.group.committed.get(partition)
        if before is not None and position.offset < before.offset:
            self.violation("a commit went back", f"{partition} {before.offset} to {position.offset}")
        if partition.topic not in self.world.topics.tiers or consumer.process.is_other:
            return
        said = set(range(position.offset))
        for first, beyond in metadata.decode(position.offset, position.metadata).complete:
            said.update(range(first, beyond))
        unsaid = {at for one, at in self.covered if one == partition and at not in said}
        if unsaid and self.world.plan.is_exactly_once:  # the next owner would store them again
            self.violation("a commit takes back another one", f"{partition} {sorted(unsaid)}")
        part = self.world.broker.topics[partition.topic][partition.number]
        for offset in sorted(said):
            if (partition, offset) in self.covered:
                continue
            if offset >= len(part):
                self.violation("a commit beyond the end", f"{partition} {offset}")
            elif missing := self._missing(part[offset]):
                self.violation("a commit beyond an incomplete seed", f"{partition} {offset}: {missing}")
            self.covered.add((partition, offset))

    def _missing(self, message: Message) -> str:
        """What of a message's tree is neither stored nor expected from another message."""
        place, at = (message.partition, message.offset), self._named_by(message)
        if place in self.no_seeds and place not in self.dead_letters:
            return "no seed, and no dead letter"
        if at is None or place in self.dead_letters or at.task_id in self.cancelled:
            return ""
        if (before := self.before.get(place)) is not None and not self._is_expected(at.url, at):
            missing = [sink for sink in self.world.sinks if self.stored[at.url][sink] <= before[sink]]
            if missing:
                return f"{at.url} was asked for again, and {missing} do not say what came of it"
        waiting = [at.url]
        for url in waiting:
            lacks = not self._is_stored(url) or self._lacks_items(url)
            is_spared = self._is_refused(url) or self._is_left_to_others(url)
            if lacks and not (is_spared or self._is_expected(url, at)):
                return f"{url} is stored in {sorted(self.stored[url])}, its items in {sorted(self.stored[url + ITEM])}"
            if self._is_stored(url):
                links = self.world.sites.pages[url].links
                waiting += [link for link in links if link not in waiting and not self._is_expected(link, at)]
        return ""

    def _is_refused(self, url: str) -> bool:
        """Also while it is put back, or was refused before and its seed became a dead letter later."""
        was_refused = url in self.were_refused and not self.set_aside_at.keys().isdisjoint(self.world.sites.above(url))
        return url in self.world.sites.refused or url in self.set_aside_at or was_refused

    def _above(self, url: str) -> Iterator[At]:
        """The messages that have a page in their tree."""
        return (at for page in self.world.sites.above(url) for at in self.places[page])

    def _is_stored(self, url: str) -> bool:
        return self.stored[url].keys() >= set(self.world.sinks)

    def _lacks_items(self, url: str) -> bool:
        """Whether its callback was called, as its document says, and a sink lacks what that gave."""
        found = self.documents[url]
        was_called = self.world.plan.has_items and found.get("status") == 200 and not found.get("description")
        return was_called and self.stored[url + ITEM].keys() < set(self.world.sinks)

    def _is_answered(self, url: str) -> bool:
        return self._is_stored(url) or url in self.set_aside_at

    def in_store(self, key: str) -> dict[str, Any]:
        found = next((self.documents[url] for url, one in self.keys.items() if one == key), {})
        more: dict[str, Any] = {CLAIM: self.claims[key]} if key in self.claims else {}
        more |= {"additional_urls": urls} if (urls := self.additional.get(str(found.get("url")))) else {}
        return {} if found.get("is_deleted") else found | more

    def is_current(self, url: str) -> bool | None:
        """Whether the document of a good page is as its site has it; None: no such page, or document."""
        page, found = self.world.sites.pages[url], self.documents.get(url, {})
        if url in self.merged:
            return None
        if page.target or page.status is None or not self._is_stored(url):
            return None
        return found.get("status") == page.status and page.may_leave(found)

    def is_open(self, url: str, besides: At | None = None) -> bool:
        """Whether a message, not complete yet, has this page in its tree."""
        return any(at != besides and at.place not in self.covered for at in self._above(url))

    def _is_expected(self, url: str, besides: At) -> bool:
        """Whether another message has this page in its tree, or will have it."""
        parked, above = {url for url, _task_id in self.parked}, self.world.sites.above(url)
        return self.is_open(url, besides) or not parked.isdisjoint(above)

    # --- at the end -------------------------------------------------------------------------------

    def check(self) -> None:
        others = [*self._wrong_letters(), *self._wrong_ends(), *self.wrong_lists(), *self._fetched_twice()]
        others += [*self._wrong_limits(), *self._lost_by_others()]
        for kind, what in [*self._wrong_pages(), *others]:
            self.violation(kind, what)

    def _innocent(self) -> set[Place]:
        """Dead letters of seeds that saw many deaths."""
        is_stormy = self.world.deaths >= MOST_DEATHS
        return {at for at, why in self.dead_letters.items() if is_stormy and "the process died" in why}

    def _wrong_pages(self) -> Iterator[tuple[str, str]]:
        sites, innocent = self.world.sites, self._innocent()
        spared = {url for url, named in self.places.items() if not innocent.isdisjoint(at.place for at in named)}
        others = sites.refused | sites.sources.keys() | sites.entries
        for url, page in sites.pages.items():
            if url in others or not spared.isdisjoint(sites.above(url)):
                continue
            if not self._is_stored(url):
                set_aside_at = max(self.set_aside_at.get(one, 0.0) for one in sites.above(url))
                if not set_aside_at > self.replayed_at > 0 and not self._is_left_to_others(url):
                    yield "lost", url
            elif url not in self.merged or "status" in self.documents[url]:
                yield from self._wrong_page(url, sites.pages[page.target or url])
            elif url not in self.additional.get(page.canonical, ()):
                yield "lost", f"{url} as another URL of {page.canonical}"

    def _wrong_page(self, url: str, there: Page) -> Iterator[tuple[str, str]]:
        found, plan = self.documents[url], self.world.plan
        is_cancelled = not self.cancelled.isdisjoint(self.world.sites.tasks_of(url))
        is_right = found.get("status") == there.status and there.may_leave(found)
        if not is_right and not (is_cancelled and found.get("description")):
            said = f"{found.get('status')} {found.get('description')} {found.get('body')!r:.60}"
            yield "a wrong document", f"{url}: {said}, not {there.status} {there.body!r:.60}"
        if is_right and not is_cancelled and self._lacks_items(url):
            yield "a lost item", f"{url} is in {sorted(self.stored[url + ITEM])}"
        expected = [there.body, plan.other_callback(url), "none" if "files" in plan.extras else None]
        item = [self.documents.get(url + ITEM, {}).get(name) for name in ("body", "callback", "file")]
        if is_right and not is_cancelled and there.status == 200 and self.stored[url + ITEM] and item != expected:
            yield "a wrong item", f"{url}: {item!r:.90}, not {expected!r:.90}"
        is_dated = there.status == 200 and not self.world.have_clocks_jumped  # a check that fails leaves the time
        if is_dated and str(found.get("changed_at") or "~") < there.changed_at:
            yield "a wrong time", f"{url}: changed at {there.changed_at}, not {found['changed_at']}"

    def wrong_lists(self) -> Iterator[tuple[str, str]]:
        """All that is not newer than what the first page shows is stored, and a list that is known ends."""
        for url in self.world.sites.lists if not self.world.have_clocks_jumped else ():
            newest = re.search(r"/list/(\d+)", self.documents.get(url, {}).get("body") or "/list/0")
            entries = [f"{url}/{number}" for number in range(1, int(newest[1]) + 1 if newest else 0)]
            tasks = self.world.sites.tasks_of(url)
            is_given_up = url in self.set_aside_at or any(map(partial(self._is_full, url), tasks))
            is_given_up |= not self.cancelled.isdisjoint(tasks)
            missed = [one for one in entries if not self._is_stored(one)]
            if missed and not is_given_up:
                yield "an entry is missed", f"{missed[:5]} of {len(entries)}"
            if (listing := self.world.sites.pages[url]).asked > listing.most_asked:
                yield "a known list goes on", f"{url}: {listing.asked} pages, not {listing.most_asked}"

    def _fetched_twice(self) -> Iterator[tuple[str, str]]:
        """By one process, which filters seeds and loses nothing of what it has done."""
        plan, above = self.world.plan, self.world.sites.above
        if not (self._is_calm and plan.settings["SITE_FILTER_SEEDS"] and plan.settings["SITE_DUPEFILTER"] == "memory"):
            return
        # what does not end well leaves no marks
        unmarked = {root for url in self.begun.union(self.set_aside_at) for root in above(url)}
        unmarked |= {url for url, named in self.places.items() if any(at.place in self.before for at in named)}
        for url, count in self.world.answers.items() if not plan.merges else ():
            tasks, spared = self.world.sites.tasks_of(url), unmarked.union(self.world.sites.lists)
            is_usual = spared.isdisjoint(above(url)) and self.cancelled.isdisjoint(tasks) and len(tasks) == 1
            if count > 1 and is_usual:
                yield "fetched twice", f"{url}: {count} times"

    def _is_left_to_others(self, url: str) -> bool:
        """Whether no task that goes on has fetched what leads to a page: it was done for one that is cancelled.

        Or what leads to it leads into a trap, or its host is full.
        """
        tasks = self.world.sites.tasks_of(url)
        is_trapped = url in DAYS and any(len(process.days) >= TRAP_PAGES for process in self.world.processes)
        if is_trapped or any(self._is_full(url, task_id) for task_id in tasks):
            return True
        if self.cancelled.isdisjoint(tasks):
            return False
        wanted = {self.world.sites.seeds[url].get("task_id")} if url in self.world.sites.seeds else set()
        if not (self.world.deaths or self.world.has_moved):  # else its next owner may find it done
            pages = self.world.sites.pages
            wanted |= {task for page, task in self.pages if page in pages and url in pages[page].links}
        return wanted <= self.cancelled

    def _is_full(self, url: str, task_id: str | None) -> bool:
        """Whether its links to the host of a page are filtered, as far as can be told."""
        host, seeds, most = url.split("/")[2], self.world.sites.seeds, self.world.most_on_host.get(task_id, inf)
        asked = sum(len(self.places[one]) for one in seeds if one.split("/")[2] == host)
        is_exact, begun = self._is_calm and not self.world.lag(), self.world.linked[task_id, host]
        return most < inf and (not is_exact or len(begun) + asked >= most)

    @property
    def _is_calm(self) -> bool:
        """Whether one process has done all of it."""
        return len(self.world.processes) == 1 and not (self.world.has_moved or self.world.deaths or self.was_replayed)

    def _wrong_limits(self) -> Iterator[tuple[str, str]]:
        answered = sum(len(process.days) for process in self.world.processes)
        for process in self.world.processes:  # it may get links that another one has found
            if len(process.days) > MOST_DAYS + 2 * (answered - len(process.days)):
                yield "a trap is not found", f"{process.name}: {len(process.days)} of {answered} days"
        for (task_id, host), urls in self.world.linked.items() if self._is_calm else ():
            if len(urls) > (most := self.world.most_on_host.get(task_id, inf)):
                yield "a host has too many pages", f"{host}: {len(urls)} for {task_id}, not {most}"
        days = [url for url in DAYS if self._is_stored(url)]
        links = {link for url in days for link in self.world.sites.pages[url].links}
        told = self.events[self.world.sites.seeds[DAYS[0]].get("task_id", "")] if days else ()
        if told and not (self.world.deaths or self.was_replayed or self.cancelled):
            refused, count = len(links.difference(days)), told[-1]["reasons"].get(TRAP, 0)
            if count < refused or (count > refused and self._is_calm and not self.recrawled):  # checks find them, too
                yield "a wrong end", f"{refused} links into a trap, but {told[-1]}"
        plan, seeds = self.world.plan, self.world.sites.seeds
        keeps_robots = plan.settings.get("SITE_KEEP_ROBOTS") and not plan.settings["SITE_FILTER_SEEDS"]
        for url, meta in seeds.items() if keeps_robots else ():
            robots = "/".join(url.split("/")[:3]) + ROBOTS
            tasks = [meta.get("task_id")] if plan.settings[SCOPE] == "task" else [None, *self.world.task_ids]
            is_done = self._is_stored(url) and not self._is_refused(url) and self.cancelled.isdisjoint(tasks)
            if is_done and self.pages.keys().isdisjoint((robots, task_id) for task_id in tasks):
                yield "lost", f"{robots} for {tasks}"

    def _lost_by_others(self) -> Iterator[tuple[str, str]]:
        sites = self.world.sites
        copies = (url for url, page in sites.pages.items() if page.canonical)
        for url in sites.pages.keys() - self.others.union(copies, sites.entries, sites.sources):
            if "groups" in self.world.plan.extras and self._is_stored(url) and not self._is_refused(url):
                yield "lost", f"{url} for the other group"

    def _wrong_letters(self) -> Iterator[tuple[str, str]]:
        for where in sorted(self.no_seeds - set(self.dead_letters)):
            yield "no dead letter", str(where)
        for url in sorted(self.world.sites.refused):
            told = any(at.place in self.dead_letters for at in self._above(url))
            if not (told or self._is_left_to_others(url)) and self.cancelled.isdisjoint(self.world.sites.tasks_of(url)):
                yield "no dead letter", url
        known = self.no_seeds | self._innocent()
        for where, reason in self.dead_letters.items():
            if where not in known and "refused by the sink" not in reason:
                yield "a dead letter for no reason", f"{where}: {reason}"

    def _wrong_ends(self) -> Iterator[tuple[str, str]]:
        if not self.world.tells_ends or self.was_replayed:
            return
        for task_id in self.world.task_ids:
            told, produced = self.events[task_id], self.produced[task_id]
            if not told:
                yield "no end", task_id
                continue
            said, seeds = f"{task_id}: {told[-1]}", told[-1]["seeds"]
            earlier = told[-1]["generation"] - 1
            before = {one["generation"]: one["pages"] for one in told}.get(earlier, 0)
            new = (url for (url, one), at in self.pages.items() if one == task_id and at >= earlier)
            answered = before + sum(self.documents.get(url, {}).get("status", 0) is not None for url in new)
            # what a process that died or lost the partition had stored is cancelled, if its task is by then
            # or finds it done for another task, if they share what is done, or behind other limits
            has_limits = not {"full hosts", "traps"}.isdisjoint(self.world.plan.extras)
            may_be_less = has_limits or self.world.plan.settings[SCOPE] == "group"
            is_left = task_id in self.cancelled or (may_be_less and (self.world.deaths or self.world.has_moved))
            is_fewer = told[-1]["pages"] < answered and bool(is_left)
            # or more: of two generations, what is stored while an end is on its way, or behind the death of its sender
            is_blurred = self.world.deaths > 0 or "recrawls" in self.world.plan.extras
            is_fewer |= earlier > 0 and is_blurred and told[-1]["pages"] >= before
            if len({json.dumps(one, sort_keys=True) for one in told if one["generation"] == 1}) > 1:
                yield "two ends", f"{task_id}: {told}"
            elif told[-1]["pages"] != answered and not is_fewer:
                yield "a wrong end", f"{said} but {answered} were answered"
            elif seeds["total"] != produced or "spilled" in seeds:  # each once, whatever was moved
                yield "a wrong end", f"{said} but {produced} seeds were produced"
            elif task_id in self.restarted and told[-1]["event"] != "done":
                yield "a wrong end", said
            elif told[-1]["partial"] and task_id not in self.deleted:
                yield "a partial end", said

    def parked_for_good(self) -> list[str]:
        """Who has lost a partition may park a seed once more that its next owner has done, cancelled or refused."""
        left = [(url, task_id) for url, task_id in self.parked if not self._is_answered(url)]
        if self.world.deaths:
            left = [one for one in left if one[1] not in self.cancelled and not self._is_full(*one)]
        return [url for url, _task_id in left]

    def has_ended(self, task_id: str) -> bool:
        """With all that was produced: who came after the end begins another generation."""
        told = self.events[task_id]
        return bool(told) and (self.was_replayed or told[-1]["seeds"]["total"] >= self.produced[task_id])
