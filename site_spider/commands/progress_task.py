"""`scrapy progress --task-id`: how far one task is."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from site_spider.commands.tasks.waiting import in_parked_topic, in_seed_topic
from site_spider.contracts.seed_log import SeedLog
from site_spider.tasks.desk import TaskDesk
from site_spider.tasks.follower import TaskTopics


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What waits is counted in the topics; the rest is what processes tell of a declared task."""

    task_id: str
    state: str
    reason: str
    waiting: int  # in the seed topic and not complete, what is in flight included
    parked: int
    seeds: dict[str, int]
    moved: dict[str, int]
    partial: bool
    pages: int
    pages_begun: int
    bytes: int

    @classmethod
    def taken(cls, log: SeedLog, topics: TaskTopics, group: str, task_id: str) -> TaskReport:
        """Read the topics. Raises LogUnavailable."""
        desk = TaskDesk(log, topics)
        board, overview = desk.board, desk.overview()
        facts = overview.of(task_id)
        return cls(
            task_id=task_id,
            state=facts.state if overview.knows(task_id) else "not declared",
            reason=facts.reason,
            waiting=sum(1 for topic in topics.all_seeds for _ in in_seed_topic(log, topic, group, task_id)),
            parked=sum(1 for _ in in_parked_topic(log, topics, board, task_id)),
            seeds=dict(facts.seeds),
            moved=dict(facts.moved),
            partial=facts.is_partial,
            pages=facts.pages,
            pages_begun=facts.pages_begun,
            bytes=facts.bytes,
        )

    @property
    def is_done(self) -> bool:
        """Whether nothing of it waits."""
        return not (self.waiting or self.parked)

    def line(self) -> str:
        """All of it in one line."""
        seeds = "".join(f", {count} {outcome}" for outcome, count in sorted(self.seeds.items()))
        reason = f" ({self.reason})" if self.reason else ""
        said = f"task {self.task_id} {self.state}{reason}: waiting {self.waiting}, parked {self.parked}"
        return f"{said}, pages {self.pages}{seeds}"

    def document(self) -> dict[str, Any]:
        """All of it for programs."""
        return asdict(self)
