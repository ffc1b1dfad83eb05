"""A budget of pages shared by processes, against all that the order of the topic allows."""

from __future__ import annotations

import random

import pytest

from site_spider.contracts.seed_log import Message, Partition
from site_spider.tasks.board import Board, note_key
from site_spider.tasks.record import Task, Usage
from site_spider.tasks.states import TaskState

TOPIC = Partition("tasks", 0)


class Process:
    """Reads the topic as late as chance has it, and begins pages as the rules allow."""

    def __init__(self, name: str, task: Task, topic: list[Message]) -> None:
        self.name, self.topic, self.read = name, topic, 0
        self.board = Board()
        self.state = TaskState(task, name)

    def tell(self) -> None:
        if self.state.is_news:
            value = self.state.told().model_dump_json().encode()
            self.topic.append(Message(TOPIC, len(self.topic), note_key("t", self.name), value))

    def hear(self, count: int) -> None:
        """Records come in batches, and are looked at when all of a batch are taken."""
        for message in self.topic[self.read : self.read + count]:
            self.board.take(message)
            self.read += 1
        self.state.heard(self.board)

    def work(self) -> bool:
        self.state.claim_more()
        if self.state.left > 0:
            self.state.count("begun")
            return True
        return False


@pytest.mark.parametrize("number", range(30))
def test_no_more_pages_begin_than_the_budget_says(number: int) -> None:
    """And all of them begin in the end, unless a process died with what it had claimed."""
    chance = random.Random(number)
    budget = chance.choice([1, 2, 7, 40, 300])
    task = Task(task_id="t", max_pages=budget)
    topic = [Message(TOPIC, 0, b"t", task.value())]
    processes = [Process(f"p{index}", task, topic) for index in range(chance.randint(1, 4))]
    for _ in range(2_000):
        each = chance.choice(processes)
        chance.choice([each.tell, each.work, each.work, lambda each=each: each.hear(chance.randint(1, 5))])()
        assert sum(process.state.counts["begun"] for process in processes) <= budget
    for _ in range(300):
        for each in processes:
            each.tell()
            each.hear(len(topic))
            if not each.work() and chance.random() < 0.2:
                each.state.give_back()
    assert sum(process.state.counts["begun"] for process in processes) == budget


def test_what_a_dead_process_has_claimed_counts_as_spent() -> None:
    task = Task(task_id="t", max_pages=100)
    claimed = Usage(claimed=10).model_dump_json().encode()
    topic = [
        Message(TOPIC, 0, b"t", task.value()),
        Message(TOPIC, 1, note_key("t", "dead"), claimed),
    ]
    process = Process("p", task, topic)
    for _ in range(300):
        process.hear(5)
        process.work()
        process.tell()
    assert process.state.counts["begun"] == 90
    assert process.state.look(process.board)
    assert process.state.phase.reason == "page_budget"
