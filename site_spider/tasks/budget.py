"""How a budget of pages is shared by processes: in blocks that each claims before it begins a page. Pure.

Theory. A process tells how many pages it claims, as a running total, and begins no more than that. A claim
counts when it was read back from the task topic, whose order is the same for all: what others had claimed
before it is known by then. Claims that go beyond the budget together are lowered by the process that
raised its own last. So no more pages begin than the budget says, however many processes there are and
whenever they claim. What a process that died had claimed and not begun is lost: two blocks at most.
"""

from __future__ import annotations

_BLOCKS = 20  # of a budget
_LARGEST = 500  # pages


def block(budget: int) -> int:
    """How many pages are claimed in advance."""
    return max(1, min(_LARGEST, budget // _BLOCKS))


def left(budget: int, others: int, claimed: int, begun: int) -> int:
    """How many pages may begin now; `claimed` was read back, `others` is what other processes claim."""
    return max(0, min(claimed, budget - others) - begun)


def wanted(budget: int, others: int, begun: int) -> int:
    """What is to be claimed: enough for the next pages, within what others leave."""
    return max(begun, min(begun + 2 * block(budget), budget - others))


def lowered(budget: int, others: int, claimed: int, begun: int) -> int:
    """The claim of whoever went beyond the budget last."""
    return max(begun, min(claimed, budget - others))
