"""What tests of dupefilters need: pages with links whose visits are counted, and each kind's settings."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from tests.contracts.dupefilters import ELSEWHERE, Case, case
from tests.in_process import engine
from tests.in_process.engine import Crawled, page

__all__ = ["case"]

HOST = "http://host.test"


def seed(path: str, **fields: Any) -> dict[str, Any]:
    return {"url": f"{HOST}/{path}", **fields}


class Site:
    def __init__(self) -> None:
        self.visits: Counter[str] = Counter()

    def has(self, path: str, *links: str, status: int = 200) -> None:
        def answer(request: Request) -> Response:
            self.visits[path] += 1
            body = f"<p>{path}" + "".join(f'<a href="/{link}">x</a>' for link in links)  # or it were a trap
            return page(request, body, status)

        engine.ANSWERS[f"/{path}"] = answer


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def settings(case: Case) -> dict[str, Any]:
    return case.settings


every_kind = pytest.mark.parametrize("case", ["memory", *ELSEWHERE], indirect=True)  # the others: tests/contracts
kinds_elsewhere = pytest.mark.parametrize("case", ELSEWHERE, indirect=True)


def outcomes(crawled: Crawled) -> dict[str, int]:
    names = ("completed_with_result", "completed_with_failure", "filtered", "dead_lettered")
    return {name: crawled.seeds[name] for name in names if crawled.seeds[name]}
