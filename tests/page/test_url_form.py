"""What links are compared as."""

from __future__ import annotations

import pytest

from site_spider.page.url import canonical_url, form_of, page_fingerprint

HOST = "http://h.test"


@pytest.mark.parametrize(
    ("written", "compared"),
    [
        ("/a", "/a"),
        ("/a?b=1", "/a?b=1"),
        ("/a?utm_source=x", "/a"),
        ("/a?z=1&utm_Medium=x&b=2&gclid=3&fbclid=4", "/a?b=2&z=1"),
        ("/a?utm_source", "/a"),
        ("/a;jsessionid=ABC?b=1", "/a?b=1"),
        ("/a;JSESSIONID=1;v=2/b", "/a;v=2/b"),
        ("/a?PHPSESSID=1&b=", "/a?b="),
        ("/(S(0123456789abcdefghijklmn))/a.aspx", "/a.aspx"),
        ("/d/index.html", "/d/"),
        ("/d/index.php?b=1", "/d/?b=1"),
        ("/index.html/x", "/index.html/x"),
        ("/a?session_id=7&sid=8&id=9&ref=x", "/a?id=9&ref=x&session_id=7&sid=8"),  # they may tell pages apart
        ("/a?b=utm_source", "/a?b=utm_source"),
    ],
)
def test_what_tells_no_pages_apart_is_left_out(written: str, compared: str) -> None:
    form = form_of(["tracking"])
    assert form is not None
    found = form.of(canonical_url(HOST + written))
    assert found == HOST + compared
    assert form.of(found) == found


def test_names_of_ones_own_take_the_place_of_those_of_trackers() -> None:
    form = form_of(["Sort", "x_*"])
    assert form is not None
    assert form.of(f"{HOST}/a?b=1&sort=2&utm_source=3&x_1=4") == f"{HOST}/a?b=1&utm_source=3"
    both = form_of(["tracking", "sort"])
    assert both is not None
    assert both.of(f"{HOST}/a?b=1&sort=2&utm_source=3") == f"{HOST}/a?b=1"
    assert form_of(["none"]) is form_of(["None"]) is form_of([]) is None
    assert form_of(["b", "a"]) is form_of(["a", "b"])


@pytest.mark.parametrize("names", [["none", "a"], [""], ["*"], ["a*b"], ["ä"], ["x" * 101], ["a"] * 201])
def test_what_is_no_list_of_names_is_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        form_of(names)


def test_fingerprints_of_urls_without_such_parameters_are_as_before() -> None:
    form = form_of(["tracking"])
    for path in ("/", "/a", "/a?b=1&a=2", "/d/index.html?x", "/a;b=c", "/%7Ea?q=%20"):
        url = canonical_url(HOST + path)
        same = form is not None and form.of(url) == url
        assert (page_fingerprint(HOST + path, None, form) == page_fingerprint(HOST + path)) is same
    assert page_fingerprint(f"{HOST}/a?utm_x=1", "t", form) == page_fingerprint(f"{HOST}/a", "t")


def test_long_queries_take_linear_time() -> None:
    form = form_of(["tracking"])
    assert form is not None
    assert form.of(f"{HOST}/?" + "utm_a=1&" * 1_000 + "b") == f"{HOST}/?b"
    assert form.of(HOST + ";sid=1" * 1_300) == HOST
    assert form.of(HOST + "/(S(" * 2_000) == HOST + "/(S(" * 2_000
