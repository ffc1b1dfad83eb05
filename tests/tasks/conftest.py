"""What tests of tasks share."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from tests.in_process import engine


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    asked: Counter[str] = Counter()

    async def answer(handler: Any, request: Request) -> Response:
        asked[request.url] += 1
        found = engine.ANSWERS.get(request.url, engine.page)(request)
        return found if isinstance(found, Response) else await found

    monkeypatch.setattr(engine.ScriptedHandler, "download_request", answer)
    return asked
