"""Seeds that care is taken with."""

from __future__ import annotations

from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from site_spider.intake.suspects import CarefulLine

hosts = st.sampled_from("abcde")
moves = st.one_of(
    st.tuples(st.just("join"), hosts),
    st.tuples(st.just("admit"), st.integers(1, 12)),
    st.tuples(st.just("left"), hosts),
    st.tuples(st.just("clear"), st.none()),
)


@given(st.lists(moves, max_size=80))
def test_it_admits_as_many_as_may_be_and_each_host_in_order(moves: list[tuple[str, object]]) -> None:
    """Against plain lists: who waits, who is admitted, and that nobody who may be is left out."""
    line: CarefulLine[int] = CarefulLine()
    waiting: defaultdict[str, list[int]] = defaultdict(list)
    admitted: Counter[str] = Counter()
    for number, (move, argument) in enumerate(moves):
        if move == "join":
            line.join(str(argument), number)
            waiting[str(argument)].append(number)
        elif move == "left" and admitted[str(argument)]:
            line.left(str(argument))
            admitted[str(argument)] -= 1
        elif move == "clear":
            assert sorted(line.clear()) == sorted((h, item) for h, items in waiting.items() for item in items)
            waiting.clear()
        elif move == "admit":
            assert isinstance(argument, int)
            of_host = max(1, argument // 4)
            for host, item in line.admit(argument):
                assert item == waiting[host].pop(0)
                admitted[host] += 1
                assert admitted[host] <= of_host
                assert admitted.total() <= argument
            may = [host for host, items in waiting.items() if items and admitted[host] < of_host]
            assert not may or admitted.total() >= argument
        assert line.length == sum(map(len, waiting.values()))
        assert line.admitted == admitted.total()


def test_hosts_take_turns() -> None:
    """One with many seeds is not served first because it was there first."""
    line: CarefulLine[int] = CarefulLine()
    for number in range(10):
        line.join("slow", number)
    line.join("fast", 10)
    assert line.admit(4) == [("slow", 0), ("fast", 10)]
    line.join("fast", 11)
    assert line.admit(4) == []
    assert line.admit(8) == [("slow", 1), ("fast", 11)]
