"""The plan of seeds, the bad messages, and the model of what must come of them."""

from __future__ import annotations

from collections import Counter

import pytest

from tools.site.expected import Expectation, expected
from tools.site.plan import BOM, KINDS, plan

PORT = 8080


def test_the_plan_holds_every_kind_and_mostly_plain_pages() -> None:
    seeds = plan(PORT)
    counts = Counter(seed.kind for seed in seeds)
    ids = [seed.url_id for seed in seeds if seed.url_id]
    assert len(seeds) == len({seed.url for seed in seeds}) == 5000
    assert set(counts) == set(KINDS)
    assert min(counts.values()) >= 3
    assert counts["page"] > 2500
    assert len(ids) == len(set(ids)) < 5000
    assert any(seed.value.startswith(BOM) for seed in seeds)
    assert any(seed.url.startswith("HTTP://") for seed in seeds)
    unknown = {seed.url for seed in seeds if seed.expectation.status == (404,)}
    assert unknown == {seed.url for seed in seeds if seed.kind in {"missing", "head-missing"}}


@pytest.mark.parametrize(
    ("path", "status", "last"),
    [
        ("/chain/301-308-302/r-3-0/x", (200,), "http://127.0.1.1:8080/landed/x"),
        ("/countdown/20/x", (200,), "http://127.0.1.1:8080/countdown/0/x"),
        ("/cookie/start/x", (200,), "http://127.0.1.1:8080/cookie/end/x"),
        ("/gate/x", (200,), "http://127.0.1.1:8080/gate/x"),
        ("/loop/a/x", (None, 301, 302), "http://127.0.1.1:8080/loop/a/x"),
        ("/countdown/21/x", (None, 301, 302), "http://127.0.1.1:8080/countdown/21/x"),
        ("/flaky/503/2/x", (200,), "http://127.0.1.1:8080/flaky/503/2/x"),
        ("/flaky/503/3/x", (503,), "http://127.0.1.1:8080/flaky/503/3/x"),
        ("/leads-to/refused/x", (None,), "http://127.0.1.1:1/"),
    ],
)
def test_the_model_walks_to_the_final_answer(path: str, status: tuple[int | None, ...], last: str) -> None:
    wanted = expected(f"http://127.0.1.1:8080{path}")
    assert (wanted.status, wanted.final_url) == (status, last)


def test_the_tree_of_a_graph_ends_at_the_depth_limit() -> None:
    tree = expected("http://127.0.1.1:8080/graph/g/0/0").tree
    levels = Counter(url.split("/")[5] for url in tree if "/graph/" in url)
    assert levels == {"1": 3, "2": 3, "3": 3}
    assert len(tree) == 12
    assert expected("http://127.0.1.1:8080/graph/g/0/0", extract=False).tree == {}
    assert len(expected("http://127.0.1.1:8080/graph/g/2/0", depth=2).tree) == 4


def test_an_expectation_says_what_is_wrong_with_a_document() -> None:
    wanted = Expectation(
        url="http://a/", final_url="http://a/b", body="text", headers={"x-a": ("1", "2")}, response_size=4
    )
    right = {
        "status": 200,
        "headers": '{"X-A": ["1", "2"]}',
        "body": "text",
        "description": None,
        "final_url": "http://a/b",
    }
    wrong = {"status": 500, "headers": None, "body": None, "description": "no", "response_size": 5}
    assert wanted.mismatches(right) == []
    assert len(wanted.mismatches(wrong)) == 6
