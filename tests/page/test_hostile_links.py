"""Pages that were made to hurt those who look for links."""

from functools import partial

import pytest

from site_spider.page.links import MAX_LINKS, SLICE_CHARS, SLICE_LINKS, link_slices
from tests.growth import assert_grows
from tests.page.found_links import BASE, urls

BOMBS = {  # made when they are needed: 150 MB in each worker
    "nested elements": lambda: "<div>" * 200_000,
    "50,000 attributes in a tag": lambda: "<a " + " ".join(f"a{i}=1" for i in range(50_000)) + " href=/no>",
    "5,000 attributes in each tag": lambda: (
        ("<a " + " ".join(f"a{i}=1" for i in range(5_000)) + " href=/no>") * 100
    ),
    "100 attributes in each tag": lambda: ("<a " + "a=1 " * 99 + "href=/x>") * 12_000,
    "attributes without values": lambda: ("<a " + "a " * 8_000 + "href=/x>") * 300,
    "formatting tags": lambda: ("<b><i><u><font size=1>" * 100 + "<p>") * 20,
    "unclosed links": lambda: "<a href=x>" * 500_000,
    "100,000 links": lambda: "".join(f'<a href="/page/{i}.html">x</a>' for i in range(100_000)),
    "malformed links": lambda: "".join(f'<a href="http://[{i}">' for i in range(200_000)),
    "links to encode": lambda: "".join(f'<a href="{i} é?ü">' for i in range(200_000)),
    "long links to encode": lambda: "".join(f'<a href="{i}{"é " * 3_900}">' for i in range(640)),
    "international hosts": lambda: "".join(f'<a href="http://{"é." * 100}{i}/">' for i in range(20_000)),
    "long hosts": lambda: "".join(f'<a href="http://{"é" * 2_000}{i}/">' for i in range(2_500)),
    "references in links": lambda: "".join(f'<a href="{i}{"&amp;" * 1_600}">' for i in range(600)),
    "dots in links": lambda: "".join(f'<a href="{i}{"/a/.." * 1_300}">' for i in range(600)),
    "a long base": lambda: (
        f'<base href="http://x.test/{"a" * 8_000}/">' + "".join(f"<a href={i}>" for i in range(100_000))
    ),
    "bases": lambda: "<base href=/x>" * 100_000,
    "less-than signs": lambda: "<" * 5_000_000,
    "comment starts": lambda: "<!--" * 1_250_000,
    "dashes": lambda: "<!--" + "-" * 5_000_000,
    "ampersands": lambda: "&amp" * 1_250_000,
    "ampersands in a link": lambda: '<a href="' + "&amp" * 1_250_000 + '">',
    "an unclosed quote": lambda: '<a href="' + "x" * 5_000_000,
    "unclosed quotes": lambda: "<a href='\"" * 500_000,
    "text in one element": lambda: "<p>" + "x" * 10_000_000,
    "text in one tag": lambda: "<p " + "x" * 10_000_000 + ">",
    "equals signs": lambda: "<a " + '=""' * 1_600_000 + ">",
    "blanks": lambda: "<a href" + " " * 5_000_000 + ">",
    "blanks between signs": lambda: "<a " + ("= " + " " * 1_000) * 5_000,
    "quotes out of place": lambda: '<b ">' * 1_000_000,
    "hidden tags": lambda: '<b a="<">' * 550_000,
    "short tags": lambda: "<b>" * 1_700_000,
    "scripts": lambda: "<script></script>" * 300_000,
    "script ends": lambda: "<script>" + "</script" * 600_000,
    "declarations": lambda: "<![CDATA[" * 500_000,
    "frames": lambda: "<iframe src=x></iframe>" * 200_000,
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", BOMBS)
def test_no_page_costs_more_than_its_length(name: str) -> None:
    """A part of every known bomb, with its end, and one four times as long."""
    bomb = BOMBS[name]()
    longest = min(len(bomb), max(len(bomb) // 4, 500_000))
    parts = {n: bomb[: n * longest // 4] + bomb[-20:] for n in (1, 4)}
    assert_grows(lambda n: partial(urls, parts[n]), 1)


def test_links_behind_a_bomb_are_found() -> None:
    """Depth and oversized tags hide nothing that comes after them."""
    for name in ("nested elements", "50,000 attributes in a tag", "formatting tags", "equals signs"):
        assert urls(BOMBS[name]()[:4_900_000] + "><a href=/behind>")[-1:] == ["http://example.com/behind"]


@pytest.mark.parametrize("name", BOMBS)
def test_no_slice_holds_many_or_long_links(name: str) -> None:
    for some in link_slices(BOMBS[name]()[:1_000_000], BASE):
        assert len(some) <= SLICE_LINKS
        assert sum(map(len, some[:-1])) <= SLICE_CHARS


def test_slices_together_are_the_links_of_the_page() -> None:
    markup = "".join(f"<a href=/{number % 3_000}>" for number in range(MAX_LINKS))
    slices = list(link_slices(markup, BASE))
    assert len(slices) > 3_000 / SLICE_LINKS
    assert [url for some in slices for url in some] == [f"http://example.com/{n}" for n in range(3_000)]
