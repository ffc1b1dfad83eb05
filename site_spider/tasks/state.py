"""One declared task in this process: its rules, its phase, and what was counted for it here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from site_spider.tasks import budget
from site_spider.tasks.board import Board
from site_spider.tasks.phase import RUNNING, Phase, phase_of
from site_spider.tasks.record import Task
from site_spider.tasks.rules import TaskRules
from site_spider.tasks.usage import NOTHING, Usage

_MOST_HOSTS_TOLD = 1_000


class TaskState:
    """Changed on the event loop's thread only."""

    def __init__(self, task: Task, process: str) -> None:
        self.rules = TaskRules(task)
        self.phase: Phase = RUNNING
        self.open_seeds = 0
        self.idle_since = 0.0
        self.begun = self.pages = self.bytes = 0
        self.parked = self.sent_on = self.links_filtered = self.links_cancelled = 0
        self.seeds: Counter[str] = Counter()
        self.is_news = False  # that the others were not told
        self.claim = 0  # as told last
        self._process = process
        self._hosts: Counter[str] = Counter()
        self._hosts_told: Mapping[str, int] = {}  # of this process, as read back
        self._hosts_of_all: Mapping[str, int] = {}  # as read: it changes
        self._claimed = 0  # of it, what was read back
        self._claimed_by_others = 0

    @property
    def task(self) -> Task:
        """As declared."""
        return self.rules.task

    def resume(self, told: Usage) -> None:
        """This process has told of it before."""
        self.begun, self.pages, self.bytes = told.begun, told.pages, told.bytes
        self.parked, self.sent_on, self.claim = told.parked, told.sent_on, told.claimed
        self.links_filtered, self.links_cancelled = told.links_filtered, told.links_cancelled
        self.seeds, self._hosts = Counter(told.seeds), Counter(told.hosts)

    def declare(self, task: Task) -> None:
        """It was changed."""
        self.rules = TaskRules(task)

    def heard(self, board: Board) -> None:
        """Processes have told what they did, this one included."""
        task_id = self.task.task_id
        mine = board.usage(task_id, self._process) or NOTHING
        self._claimed = mine.claimed
        self._claimed_by_others = board.used(task_id).claimed - mine.claimed
        if self.task.max_pages_host is not None:
            self._hosts_told, self._hosts_of_all = mine.hosts, board.hosts(task_id)
        if board.last_claimer(self.task.task_id) == self._process:
            self._yield()

    def _yield(self) -> None:
        if self.task.max_pages is None or self._claimed != self.claim:
            return
        lower = budget.lowered(self.task.max_pages, self._claimed_by_others, self.claim, self.begun)
        if lower < self.claim:
            self.claim, self.is_news = lower, True

    def look(self, board: Board) -> bool:
        """Find out its phase; True when that has changed."""
        before, task_id = self.phase, self.task.task_id
        self.phase = phase_of(self.task, board.used(task_id), board.times(task_id), self.left)
        return self.phase != before

    # --- the budget of pages ------------------------------------------------------------------

    @property
    def left(self) -> int:
        """How many pages may begin."""
        if self.task.max_pages is None:
            return 0
        return budget.left(self.task.max_pages, self._claimed_by_others, self._claimed, self.begun)

    @property
    def has_no_budget(self) -> bool:
        """Whether any number of pages may begin."""
        return self.task.max_pages is None

    @property
    def may_begin(self) -> bool:
        """Whether one more page may."""
        return self.has_no_budget or self.left > 0

    def claim_more(self) -> bool:
        """Claim the next pages; True when there is something to tell at once."""
        if self.task.max_pages is None:
            return False
        want = budget.wanted(self.task.max_pages, self._claimed_by_others, self.begun)
        if self.claim - self.begun > budget.block(self.task.max_pages) or want <= self.claim:
            return False
        self.claim, self.is_news = want, True
        return True

    def give_back(self) -> None:
        """Nothing of it is here: others may have what was claimed."""
        if self.claim > self.begun:
            self.claim, self.is_news = self.begun, True

    # --- counts -----------------------------------------------------------------------------------

    def has_room_on(self, host: str) -> bool:
        """Whether the budget of a host allows for one more link."""
        most = self.task.max_pages_host
        if most is None:
            return True
        of_others = self._hosts_of_all.get(host, 0) - self._hosts_told.get(host, 0)
        return self._hosts[host] + of_others < most

    def count_host(self, host: str) -> None:
        """One more page of it is to be fetched."""
        if self.task.max_pages_host is not None:
            self._hosts[host] += 1
            self.is_news = True

    def count_begun(self) -> None:
        """A first attempt is given out."""
        self.begun += 1
        self.is_news = True

    def count_page(self, document: Mapping[str, Any]) -> bool:
        """A document is written; True when the budget of bytes is spent here alone."""
        self.pages += document.get("status") is not None  # as the event of its end counts them
        self.bytes += document.get("response_size") or 0
        self.is_news = True
        return self.task.max_bytes is not None and self.bytes >= self.task.max_bytes

    def count_parked(self) -> int:
        """A message is durable in the parked topic; the how manyth."""
        self.parked += 1
        self.is_news = True
        return self.parked

    def count_sent_on(self) -> None:
        """A parked message is in the seed topic as well."""
        self.sent_on += 1
        self.is_news = True

    def count_filtered_link(self) -> None:
        """By a rule, or the budget of its host."""
        self.links_filtered += 1
        self.is_news = True

    def count_cancelled_link(self) -> None:
        """It waited, or was found, when the task was over."""
        self.links_cancelled += 1
        self.is_news = True

    def seed_came(self) -> None:
        """One more is in flight."""
        self.open_seeds += 1

    def seed_left(self, now: float) -> None:
        """One less, at a time of the event loop."""
        self.open_seeds -= 1
        self.idle_since = now

    def told(self) -> Usage:
        """What the others are to know; they are being told."""
        self.is_news = False
        return self.usage()

    def count_ended(self, name: str) -> None:
        """A seed has ended here; the name is one of tasks.counts."""
        self.seeds[name] += 1
        self.is_news = True

    def usage(self) -> Usage:
        """What the others are to know."""
        half = (self.task.max_pages_host or 0) // 2
        hosts = [(host, count) for host, count in self._hosts.most_common(_MOST_HOSTS_TOLD) if count >= half]
        return Usage(
            claimed=self.claim,
            begun=self.begun,
            pages=self.pages,
            bytes=self.bytes,
            parked=self.parked,
            sent_on=self.sent_on,
            links_filtered=self.links_filtered,
            links_cancelled=self.links_cancelled,
            seeds=dict(self.seeds),
            hosts=dict(hosts),
        )
