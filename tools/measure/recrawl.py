"""A year of a site whose pages change at rates of their own: freshness and requests by interval.

python -m tools.measure.recrawl
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from site_spider.results.recrawl import CheckRules, check_of

DAY = 86_400
_YEAR = 365 * DAY
# seconds between changes of twenty pages: on each day about one in fifteen changes
_MEANS = (DAY, *[7 * DAY] * 3, *[30 * DAY] * 8, *[365 * DAY] * 8)
RULES = CheckRules(3_600, 2_592_000, DAY, 21_600, 10, 3)  # the defaults

Changes = Sequence[float]  # times of the changes of a page
Wait = Callable[[Mapping[str, Any], bool], int]  # seconds to the next check, and what is known then


class Year(NamedTuple):
    requests: int
    fresh: float  # share of the time in which the stored page is the present one
    behind_hours: float  # from a change to the check that finds it, on average


def pages(count: int, seed: int = 1) -> list[Changes]:
    """Changes come at random; at the rate of its place among twenty."""
    rnd, made = random.Random(seed), []
    for number in range(count):
        moment, times = 0.0, []
        while (moment := moment + rnd.expovariate(1 / _MEANS[number % len(_MEANS)])) < _YEAR:
            times.append(moment)
        made.append(times)
    return made


def adaptive(most_s: int = RULES.most_s) -> Wait:
    rules = RULES._replace(most_s=most_s)
    return lambda known, is_same: check_of(rules, known, 200, is_same=is_same, is_repeat=False).wait_s


def fixed(seconds: int) -> Wait:
    return lambda _known, _is_same: seconds


def year(site: Sequence[Changes], wait: Wait) -> Year:
    requests, stale, found, late = 0, 0.0, 0, 0.0
    for changes in site:
        moment, seen, known = 0.0, 0, {"status": 200, "body_hash": "h", "interval_s": DAY}
        while moment < _YEAR:
            now = bisect_right(changes, moment)
            requests += 1
            stale += moment - changes[seen] if now > seen else 0.0
            late += sum(moment - change for change in changes[seen:now])
            found += now - seen
            interval = wait(known, now == seen)
            seen, moment, known = now, moment + interval, {**known, "interval_s": interval}
        stale += _YEAR - changes[seen] if len(changes) > seen else 0.0
    return Year(requests, 1 - stale / (_YEAR * len(site)), late / found / 3600)


def main() -> None:
    site = pages(1000)
    print("| interval | requests a page | fresh | a change is found after |\n|---|---|---|---|")
    same = _YEAR * len(site) // year(site, adaptive()).requests
    ways = {"1 day": fixed(DAY), "7 days": fixed(7 * DAY), f"{same / DAY:.1f} days": fixed(same)}
    ways |= {"adaptive": adaptive(), "adaptive, at most 7 days": adaptive(7 * DAY)}
    for name, way in ways.items():
        found = year(site, way)
        print(f"| {name} | {found.requests / 1000:.0f} | {found.fresh:.0%} | {found.behind_hours:.1f} h |")


if __name__ == "__main__":
    main()
