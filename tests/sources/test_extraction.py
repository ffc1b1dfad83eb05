"""What a source finds in a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from site_spider.sources.extraction import (
    MAX_ITEMS,
    MAX_TEXT_CHARS,
    MAX_VALUES,
    NEXT_PAGE,
    Extracted,
    FoundLink,
    SourcePage,
    extract,
)
from site_spider.sources.library import parse_source
from site_spider.sources.model import Source

URL = "http://shop.test/catalogue/list.html"
HTML = """
<html><body><h1> Books &amp; more </h1>
<ol>
  <li class="one"><a href="a_1/">First</a> <b class="price">£51.77</b><i>x</i><i>y</i></li>
  <li class="one"><a href="/b_2/?q=1&copy=2">Second</a> <b class="price">1.234,50 €</b></li>
  <li class="one"><a href="mailto:x@y.test">None</a></li>
</ol>
<li class=next><a href="list-2.html#top">next</a></li>
<time datetime="2024-05-06">May</time></body></html>
"""


def run(body: str, page: str = HTML, url: str = URL, **more: Any) -> Extracted:
    source = parse_source(f"match: {{hosts: [shop.test]}}\n{body}".encode(), Path("shop.yaml"))
    return extract(source, SourcePage(url, page), **more)


def fields(page: str = HTML, **wanted: Any) -> tuple[dict[str, Any], list[str]]:
    found = run(yaml.safe_dump({"items": [{"fields": wanted}]}), page)
    (item,) = found.items
    return item, found.notes


def test_a_page_may_leave_many_tags_open() -> None:
    """As with Scrapy's selectors: 2,000 of them."""
    assert fields("<font>" * 1_900 + HTML, day={"css": "time"})[0] == {"day": "May"}


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        ({"css": "h1"}, " Books & more "),
        ({"css": "h1::text", "then": ["strip"]}, "Books & more"),
        ({"xpath": "count(//li)", "type": "integer"}, 4),
        ({"xpath": "//li[1]/a/@href", "then": ["absolute_url"]}, "http://shop.test/catalogue/a_1/"),
        ({"css": "li a::attr(href)", "list": True, "then": ["absolute_url"]}, [
            "http://shop.test/catalogue/a_1/",
            "http://shop.test/b_2/?q=1&copy=2",
            "http://shop.test/catalogue/list-2.html",
        ]),
        ({"css": ".price", "type": "number", "then": ["number"]}, 51.77),
        ({"xpath": "//li[2]/b", "type": "number", "then": [{"number": ","}]}, 1234.5),
        ({"css": "i", "then": ["join"]}, "x y"),
        ({"css": "i", "then": [{"join": "-"}]}, "x-y"),
        ({"css": "i", "list": True}, ["x", "y"]),
        ({"css": ".price", "regex": r"(\d+)\.", "type": "integer"}, 51),
        ({"regex": r'datetime="(\d+)', "type": "integer"}, 2024),
        ({"css": "time::attr(datetime)", "then": ["date"]}, "2024-05-06"),
        ({"constant": {"a": [1]}}, {"a": [1]}),
        ({"constant": None}, None),
        ({"css": ".none"}, None),
        ({"css": ".none", "list": True}, []),
        ({"css": ".none", "type": "integer", "default": 7}, 7),
        ({"xpath": "boolean(//h1)", "type": "boolean"}, True),
    ],
)  # fmt: skip
def test_a_field_finds(wanted: dict[str, Any], value: object) -> None:
    item, notes = fields(value=wanted)
    assert item == {"value": value}
    assert notes == []


@pytest.mark.parametrize(
    ("text", "step", "value"),
    [
        ("06/05/2024", {"date": "%d/%m/%Y"}, "2024-05-06"),
        ("6 May 2024 10:20", {"date": "%d %B %Y %H:%M"}, "2024-05-06T10:20:00"),
        ("2024-05-06T10:20:30+02:00", "date", "2024-05-06T10:20:30+02:00"),
        ("Mon, 06 May 2024 10:20:30 GMT", "date", "2024-05-06T10:20:30+00:00"),
        ("tomorrow", "date", None),
        ("-1 234", "number", "-1234"),
        ("1" * 200, "number", None),
        ("none", "number", None),
    ],
)
def test_dates_and_numbers(text: str, step: object, value: object) -> None:
    item, notes = fields(f"<p>{text}</p>", value={"css": "p", "then": [step]})
    assert item["value"] == value
    assert bool(notes) is (value is None)


def test_json_pages() -> None:
    """An item for each element of a list; numbers stay numbers, and what is missing is null."""
    page = json.dumps({"all": [{"n": 1, "who": {"name": "A"}}, {"n": "x", "tags": ["p", "q"]}, None]})
    body = """
items:
  - each: {jmespath: "all[]"}
    fields:
      n: {jmespath: n, type: integer}
      name: {jmespath: who.name}
      tags: {jmespath: tags, list: true}
"""
    found = run(body, page)
    assert found.items == [{"n": 1, "name": "A", "tags": []}, {"n": None, "name": None, "tags": ["p", "q"]}]
    assert found.notes == ["n: 'x' is no number; the step number finds one in a text"]


def test_item_rules_are_for_urls() -> None:
    body = """
items:
  - {urls: ['/detail/'], fields: {a: {constant: 1}}}
  - each: {css: li.one}
    fields:
      title: {css: a}
      price: {css: .price, required: true}
"""
    found = run(body)
    assert [item["title"] for item in found.items] == ["First", "Second"]
    assert found.lost == ["an item is left out: price is missing"]
    assert run(body, url="http://shop.test/detail/1").items == [{"a": 1}, *found.items]


def test_links_go_by_the_first_rule_that_they_meet() -> None:
    body = """
follow:
  - {css: li.one, allow: ['a_\\d'], to: details}
  - {deny: ['b_2']}
pagination: {css: "li.next a"}
"""
    found = run(body)
    assert found.links == [
        FoundLink("http://shop.test/catalogue/a_1/", 0),
        FoundLink("http://shop.test/catalogue/list-2.html", NEXT_PAGE),  # and not by the second rule
    ]
    assert run(body, wants_links=False).links == []


def test_nofollow_links_are_not_followed_unless_told_otherwise() -> None:
    """Neither those that are marked, one by one, nor those of a page whose meta tag says so."""
    body = "follow: [{css: .p}, {css: '.q a::attr(href)'}]\npagination: {css: a.n}\n"
    page = "<a class=p rel='NOFOLLOW x' href=1></a><a class=p href=2></a><p class=q><a rel=nofollow href=3></a>"
    page += "<a href=4></a></p><a class=n rel=nofollow href=5></a><a href=1></a>"
    source, paths = parse_source(f"match: {{hosts: [shop.test]}}\n{body}".encode(), Path("shop.yaml")), "12345"
    for meta, followed in (("", "24"), ("<meta name=Robots content='noindex,None'>", "")):
        for follow, expected in ((False, followed), (True, paths)):
            found = extract(source, SourcePage("http://shop.test/", meta + page, follow_nofollow=follow))
            assert "".join(link.url[-1] for link in found.links) == expected
    marked = '{"next": "/2", "text": "<meta name=robots content=nofollow>"}'  # JSON has no marks
    assert run("pagination: {jmespath: next}", marked).links == [FoundLink("http://shop.test/2", NEXT_PAGE)]
    assert run("pagination: {xpath: //comment() | //p}", "<!--x--><p>").links == []


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('{"x": NaN, "y": [1e999, 2]}', {"x": None, "y": [None, 2]}),
        ('[1, null, "", {"b": "\\ud800"}]', [1, None, "", {"b": "?"}]),
        ("5", 5),
        ('{"b": 1}', {"b": 1}),
        ("[]", []),
    ],
)
def test_a_whole_value_of_json(written: str, value: object) -> None:
    """With the type any, and no list asked for. For numbers that JSON does not have stands null."""
    item, notes = fields(f'{{"a": {written}}}', value={"jmespath": "a", "type": "any"})
    assert item == {"value": value}
    said = "value: a value holds numbers that cannot be used; null stands for them"
    assert notes == ([said] if "NaN" in written else [])


VALUES = [
    "n/a", "1e999", "-1e999", "NaN", "Infinity", "inf", "²", "٣", "1,2.3.4", "--5", "9" * 101, "9" * 5000,
    "0x10", "1_000", "yes", "\ud800", "\0", "1e308", "2024-13-45", "9999-12-31T23:59:59+23:59", "http://[",
    "//", "javascript:x", "http://x:99999/", "http://\udfff/", "Mon, 99 May 2024 10:20:30 GMT", "",
    "Mon, 06 May 99999999999999999999 10:20:30 GMT", "[" * 5000, '{"x":' * 200 + "1" + "}" * 200,
]  # fmt: skip
XPATHS = [
    "number(//p)", "count(//p) div 0", "0 div 0", "//p", "//@*", "//namespace::*", "//comment()",
    "//processing-instruction()", "sum(//p)", "//text()", "/..", "substring(//p, 0 div 0)",
]  # fmt: skip
JMESPATHS = [
    "@", "a", "@.*", "to_number(a)", "sum(@.*)", "max(@.*)", "length(a)", "sort(@.*)", "a[::0]", "ceil(a)",
    "abs(a)", "avg(@.*)", "to_string(@)", "join(a, @.*)", "sort_by(@.*, &x)", "max_by(@.*, &@)",
    "merge(a, @)", "`1e999`", "contains(a, `1`)", "a > `1`", "map(&x, @.*)", "reverse(a)", "not_null(a)",
]  # fmt: skip
STEPS: list[list[object]] = [[], ["number"], [{"number": ","}], ["date"], [{"date": "%Y"}], ["absolute_url"], ["join"]]


@pytest.mark.parametrize(
    "kind", ["any", *(pytest.param(k, marks=pytest.mark.nightly) for k in ("text", "integer", "number", "boolean"))]
)
def test_no_value_costs_more_than_its_field(kind: str) -> None:
    """Every way to find a value, every step and every type: the page keeps its items, as JSON in UTF-8."""

    def rules(way: str, ways: list[str], steps: list[object]) -> list[dict[str, Any]]:
        same: dict[str, Any] = {"type": kind, "then": steps}
        return [
            {"fields": {f"f{n}": {way: one, **same} for n, one in enumerate(ways)}},
            {"fields": {f"f{n}": {way: one, **same, "list": True} for n, one in enumerate(ways)}},
            *({"each": {way: one}, "fields": {"f": {way: one, **same}}} for one in ways if way != "regex"),
        ]

    def of(items: list[dict[str, Any]]) -> Source:
        source = {"match": {"hosts": ["shop.test"]}, "items": items}
        return parse_source(json.dumps(source).encode(), Path("shop.yaml"))

    ways = {"css": ["p", "p::text"], "xpath": XPATHS, "regex": [".+"]}
    for steps in STEPS:
        html = of([rule for way, expressions in ways.items() for rule in rules(way, expressions, steps)])
        data = of(rules("jmespath", JMESPATHS, steps))
        for value in VALUES:
            tried = [(html, f"<p id=a>{value}</p><!--x--><?pi y?>"), (data, json.dumps({"a": value, "b": 1}))]
            tried += [(data, f'{{"a": {value}, "b": "x"}}'), (data, '{"a": [{"x": NaN}], "b": ["x"]}')]
            for source, page in tried:
                found = extract(source, SourcePage(URL, page))
                assert len(found.items) >= 2
                assert json.dumps(found.items, ensure_ascii=False, allow_nan=False).encode()
                assert json.dumps([found.links, found.notes, found.lost], ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("page", "wanted", "note"),
    [
        ("<b>n/a</b>", {"xpath": "number(//b)", "type": "integer"}, "nan is no number that can be used"),
        ("<b>1</b>", {"xpath": "1 div 0", "type": "number"}, "inf is no number that can be used"),
        ("<b>1e999</b>", {"css": "b", "type": "number"}, "'1e999' is no number that can be used"),
        ('{"a": 1e999}', {"jmespath": "a", "type": "integer"}, "inf is no number that can be used"),
        ('{"a": 1e999}', {"jmespath": "a", "type": "any"}, "inf is no number that can be used"),
        ('{"a": NaN}', {"jmespath": "a"}, "nan is no number that can be used"),
        ('{"a": 1e30}', {"jmespath": "a", "type": "integer"}, "'1e+30' is too large for an integer"),
        ('{"a": "x"}', {"jmespath": "a > `1`"}, "'>' not supported between instances of 'str' and 'int'"),
        ('{"a": 1}', {"jmespath": "contains(a, `1`)"}, "In function contains()"),
        ('{"a": [1]}', {"jmespath": "a[::0]"}, "slice step cannot be zero"),
    ],
)
def test_a_value_that_cannot_be_used_is_a_note_of_its_field(page: str, wanted: dict[str, Any], note: str) -> None:
    found = run(yaml.safe_dump({"items": [{"fields": {"a": wanted, "b": {"constant": 1}}}]}), page)
    assert found.items == [{"a": None, "b": 1}]
    (said,) = found.notes
    assert said.startswith(f"a: {note}")
    assert len(said) <= 300


def test_each_and_pagination_that_cannot_be_evaluated_are_noted() -> None:
    body = """
pagination: {jmespath: "a > `1`"}
items: [{each: {jmespath: "b[::0]"}, fields: {a: {constant: 1}}}]
"""
    found = run(body, '{"a": "x", "b": [1]}')
    assert [said.split(":")[0] for said in found.notes] == ["each", "pagination"]


HOSTILE = [
    "", " ", "\0", "\ud800<p>\ud800", "<", "<p", "[" * 100_000, '{"a":' * 50_000, "<div>" * 50_000, "NaN",
    '{"a": NaN, "b": 1e999, "c": "\\ud800"}', "<base href='javascript:x'><a href='x'>", "<!--" * 1000,
]  # fmt: skip


@pytest.mark.parametrize("page", HOSTILE, ids=lambda page: repr(page[:12]))
def test_no_page_makes_it_fail(page: str) -> None:
    body = """
follow: [{}]
pagination: {css: a}
items:
  - fields:
      a: {css: "p, html", list: true, then: [strip, absolute_url, number, date, join]}
      b: {jmespath: "*", list: true, type: any}
      c: {regex: '.+', list: true, type: number}
  - each: {xpath: "//p | //text()"}
    fields: {d: {regex: '.'}, e: {css: a}}
"""
    found = run(body, page)
    json.dumps([found.items, found.links, found.notes], ensure_ascii=False).encode()


def test_what_a_page_gives_is_bounded() -> None:
    many = "<p>x</p>" * (MAX_ITEMS + 5)
    found = run("items: [{each: {css: p}, fields: {a: {css: p}}}]", many)
    assert len(found.items) == MAX_ITEMS
    assert found.lost == ["the page has more items than are taken"]
    assert len(fields(many, a={"css": "p", "list": True})[0]["a"]) == MAX_VALUES
    assert len(fields("<p>" + "x" * 500_000, a={"css": "p"})[0]["a"]) == MAX_TEXT_CHARS
    notes = run("items: [{each: {css: p}, fields: {a: {css: p, type: integer}}}]", many).notes
    assert len(notes) == 1


# --- JSON in scripts -------------------------------------------------------------------------------------

SCRIPTS = """
<script type="application/ld+json">{"@context": "https://schema.org", "@graph": [
  {"@type": "Product", "name": "A\nlamp", "offers": {"price": "19.90"}}, {"@type": "Person"}]}</script>
<script type="Application/LD+JSON; charset=utf-8">
  //<![CDATA[
  [{"@type": "Product", "name": "B"}] //]]></script>
<script type="application/ld+json">{"@type": "Product", "name": oops}</script>
<script type="application/ld+json">[[{"@type": "Shop", "@graph": {"@type": "Product", "name": "C"}}], [null]]</script>
<script id="__NEXT_DATA__" type="application/json">{"props": {"id": 7, "tags": ["x", "y"]}}</script>
<script>window.__STATE__ = {"user": {"name": "Ann"}}; var list = [1, {"a": 2}]; let x = {not: "json"};
  const inside = {"a": "window.other = {}"}; window["last"] = {"n": 1}</script>
"""


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        ({"jsonld": "[?\"@type\"=='Product'].name", "list": True}, ["A\nlamp", "B", "C"]),
        ({"jsonld": "[].offers.price", "type": "number"}, 19.9),
        ({"jsonld": "[3:]", "type": "any"}, [{"@type": "Shop"}, {"@type": "Product", "name": "C"}]),
        ({"script": "__NEXT_DATA__.props.id", "type": "integer"}, 7),
        ({"script": "__NEXT_DATA__.props", "type": "any"}, {"id": 7, "tags": ["x", "y"]}),
        ({"script": '"__STATE__".user.name', "regex": "(A)"}, "A"),
        ({"script": "list[1].a", "type": "integer"}, 2),
        ({"script": "last.n", "type": "integer"}, 1),
        ({"script": "keys(@)", "list": True}, ["__NEXT_DATA__", "__STATE__", "list", "inside", "last"]),
        ({"script": "none.at.all", "default": "-"}, "-"),
    ],
)
def test_json_in_scripts_is_selected_and_what_is_malformed_is_a_note(wanted: Any, value: Any) -> None:
    item, notes = fields(SCRIPTS, value=wanted)
    assert item == {"value": value}
    assert any(note.startswith("JSON-LD cannot be read: Expecting value") for note in notes)
    assert "what is assigned to x in a script is no JSON" in notes


def test_objects_of_json_ld_are_items_of_their_own_and_links() -> None:
    body = """
items: [{each: {jsonld: "[?name]"}, fields: {name: {jmespath: name}, page: {css: h1}}}]
pagination: {script: next.url}
"""
    found = run(body, SCRIPTS + '<h1>t</h1><script id=next type="a/json">{"url": "2.html"}</script>')
    assert found.items == [{"name": name, "page": "t"} for name in ("A\nlamp", "B", "C")]
    assert [link.url for link in found.links] == ["http://shop.test/catalogue/2.html"]


@pytest.mark.parametrize(
    ("page", "note"),
    [
        ("[" * 100_000, "JSON-LD cannot be read"),
        ('{"a": ' * 100_000, "JSON-LD cannot be read"),
        ("", "JSON-LD cannot be read"),
        ("<!--" * 100_000, "JSON-LD cannot be read"),
        ("9" * 100_000, ""),
        ('"' + "x" * 2_000_001, "scripts have more than 2000000 characters"),
        ("</script><script>" + "var a = {" * 50_000, "what is assigned to a in a script is no JSON"),
        ("</script><script>" + "window." * 100_000, ""),
        ('</script><script type="application/ld+json">'.join(["{}"] * 10_000), ""),
    ],
)
def test_hostile_scripts_cost_a_note(page: str, note: str) -> None:
    item, notes = fields(f'<script type="application/ld+json">{page}</script>', value={"jsonld": "[0].name"})
    assert item == {"value": None}
    assert any(said.startswith(note) for said in notes) or not note


def test_a_page_without_such_selectors_reads_no_scripts() -> None:
    assert fields(SCRIPTS, value={"css": "h1"})[1] == []
