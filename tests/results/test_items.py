"""Items of spiders: documents of their own, which hold their seed, beside the result of their page."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import attrs
import pytest
import scrapy
from pydantic import BaseModel
from scrapy import Request, signals
from scrapy.exceptions import DropItem, IgnoreRequest
from scrapy.http import Response
from scrapy.logformatter import LogFormatter
from twisted.python.failure import Failure

from site_spider import Result, SeedSpider, page_of
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.download.bodies import LARGE_BYTES
from tests.in_process import engine
from tests.in_process.engine import crawl, page
from tests.in_process.scripted_sink import ScriptedSink

WRITES = {"site_spider.results.pipeline.ResultPipeline": 900}
SEED = {"url": "http://h.test/list", "meta": {"url_id": "list", "task_id": "spring", "NotExtract": True}}


class ItemSpider(SeedSpider):
    """Gives what a test says."""

    name = "shop"
    given: ClassVar[Any] = ()

    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        yield from self.given


def spider(*given: Any, **attributes: Any) -> type[SeedSpider]:
    return type("Given", (ItemSpider,), {"given": given, **attributes})


def pipeline(error_of: Callable[[Any], Exception | None]) -> type:
    """One that fails with what this gives for an item, if it gives anything."""

    def process_item(_self: Any, item: Any) -> Any:
        if (error := error_of(item)) is not None:
            raise error
        return item

    return type("Failing", (), {"process_item": process_item})


class Book(scrapy.Item):
    title = scrapy.Field()


@dataclass
class Shelf:
    title: str
    books: list[Any] = field(default_factory=list)


@attrs.define
class Author:
    title: str


class Publisher(BaseModel):
    title: str


def test_every_kind_of_item_is_a_document_with_its_page_beside_it(tmp_path: Path) -> None:
    """Its own fields untouched; the id is its place on the page. Dates, prices and sets are text."""
    given = (
        {"title": "dict"},
        Book(title="item"),
        Shelf("dataclass", [Author("inner"), {"deep": [Book(title="deeper")]}]),
        Author("attrs"),
        Publisher(title="pydantic"),
        {
            "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "day": datetime(2026, 1, 2, tzinfo=UTC).date(),
            "price": Decimal("12.50"),
            "tags": {"b", "a"},
            "pair": (1, 2),
            3: "number",
            "half": "x\ud800",
        },
    )
    found = crawl(tmp_path, [SEED], spider(*given))
    assert [found.items[f"list-{place}"].pop("_page")["url_id"] for place in range(1, 7)] == ["list"] * 6
    assert list(found.items.values()) == [
        {"title": "dict"},
        {"title": "item"},
        {"title": "dataclass", "books": [{"title": "inner"}, {"deep": [{"title": "deeper"}]}]},
        {"title": "attrs"},
        {"title": "pydantic"},
        {
            "when": "2026-01-02T03:04:05+00:00",
            "day": "2026-01-02",
            "price": "12.50",
            "tags": ["a", "b"],
            "pair": [1, 2],
            "3": "number",
            "half": "x?",
        },
    ]
    assert (found.lag, found.dead_letters) == (0, [])


def test_the_page_says_where_an_item_comes_from(tmp_path: Path) -> None:
    class Linked(SeedSpider):
        name = "linked"

        def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
            yield {"at": response.url}
            yield Request("http://h.test/detail", callback=self.detail)

        async def detail(self, response: Response) -> AsyncIterator[Any]:
            yield {"at": response.url}

    found = crawl(tmp_path, [SEED], Linked)
    of = {item["at"]: item["_page"] for item in found.items.values()}
    assert datetime.fromisoformat(of["http://h.test/list"].pop("fetched_at")).tzinfo is not None
    assert of["http://h.test/list"] == {
        "url_id": "list",
        "url": "http://h.test/list",
        "task_id": "spring",
        "seed_url_id": None,
        "depth": 0,
        "spider": "linked",
    }
    detail = of["http://h.test/detail"]
    assert (detail["seed_url_id"], detail["depth"], detail["task_id"]) == ("list", 1, "spring")
    assert found.documents[detail["url_id"]]["url"] == "http://h.test/detail"


def test_the_result_of_the_page_is_written_besides(tmp_path: Path) -> None:
    """Whatever kind of callback it is, and when it gives nothing, or documents of others alone."""

    class Kinds(SeedSpider):
        name = "kinds"

        def parse(self, response: Response) -> Any:  # type: ignore[override]
            kind = response.url.rpartition("/")[2]
            return getattr(self, kind)(Result(f"other-{kind}", 200, "{}"))

        def generator(self, other: Result) -> Iterator[Any]:
            yield from ({"a": 1}, other)

        def nothing(self, _other: Result) -> None:
            return None

        def one(self, _other: Result) -> Any:
            return {"a": 1}

        def another(self, other: Result) -> Any:
            return other

        def several(self, other: Result) -> list[Any]:
            return [{"a": 1}, other]

        async def coroutine(self, other: Result) -> list[Any]:
            await asyncio.sleep(0)
            return [{"a": 1}, other]

        async def generator_of_later(self, other: Result) -> AsyncIterator[Any]:
            await asyncio.sleep(0)
            yield other
            yield {"a": 1}

    kinds = ["generator", "nothing", "one", "another", "several", "coroutine", "generator_of_later"]
    seeds = [{"url": f"http://h.test/{kind}", "meta": {"url_id": kind}} for kind in kinds]
    found = crawl(tmp_path, seeds, Kinds)
    others = {f"other-{kind}" for kind in kinds} - {"other-nothing", "other-one"}
    assert set(found.documents) == {*kinds, *others}
    for kind in kinds:
        document = found.documents[kind]
        assert (document["status"], document["description"], document["body"]) == (200, None, "<p>page")
        assert document["spider"] == "kinds"
    assert set(found.items) == {f"{kind}-1" for kind in kinds if kind not in ("nothing", "another")}
    assert found.seeds["completed_with_result"] == len(kinds)


def test_a_document_of_another_that_is_dropped_is_no_failure_of_the_page(tmp_path: Path) -> None:
    """As an item that a pipeline does not want."""
    dropping = pipeline(lambda item: DropItem("not wanted") if item.url_id == "other" else None)
    given = spider(Result("other", 200, "{}"))
    found = crawl(tmp_path, [SEED], given, ITEM_PIPELINES={dropping: 300, **WRITES})
    assert {name: document["description"] for name, document in found.documents.items()} == {"list": None}


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class MuteIgnore(MuteError, IgnoreRequest):
    pass


class MuteDrop(MuteError, DropItem):
    pass


def test_what_an_error_says_is_bounded_and_one_that_says_nothing_is_named(tmp_path: Path) -> None:
    """Of the spider, a download, and of whatever drops the page. It may hold the page, which a sink would refuse."""
    errors = {
        "spider": MuteError(),
        "long": ValueError("x" * 1_000_000),
        "download": MuteError(),
        "ignored": MuteIgnore(),
        "dropped": MuteDrop("it cannot be had"),
        "dropped_long": DropItem("x" * 1_000_000),
    }

    class Raising(SeedSpider):
        async def parse(self, response: Response) -> Any:  # type: ignore[override]
            if (name := page_of(response).url_id) in ("spider", "long"):
                raise errors[name]
            return await super().parse(response)

    class Dropping:
        def process_request(self, request: Request) -> None:
            if (name := request.url.rpartition("/")[2]) in ("download", "ignored"):
                raise errors[name]

        def process_item(self, item: Any) -> Any:
            if item.url_id.startswith("dropped"):
                raise errors[item.url_id]
            return item

    class Silent(LogFormatter):
        def dropped(self, *_arguments: Any) -> None:  # type: ignore[override]
            """The log would ask for the text as well."""

    found = crawl(
        tmp_path,
        [{"url": f"http://h.test/{name}", "meta": {"url_id": name}} for name in errors],
        Raising,
        DOWNLOADER_MIDDLEWARES={Dropping: 10},
        ITEM_PIPELINES={Dropping: 300, **WRITES},
        LOG_FORMATTER=Silent,
    ).documents
    said = {name: document["description"] for name, document in found.items()}
    for name, began in (("long", "ValueError in the spider: x"), ("dropped_long", "the item was dropped: x")):
        assert said[name].startswith(began)
        assert len(said.pop(name)) < 1_000
    assert said == {
        "spider": "MuteError in the spider: its text cannot be had: RuntimeError",
        "download": "MuteError: its text cannot be had: RuntimeError",
        "ignored": "its text cannot be had: RuntimeError",
        "dropped": "the item was dropped: its text cannot be had: RuntimeError",
    }
    assert found["spider"]["body"] == "<p>page"


def test_a_method_may_be_callback_and_errback(tmp_path: Path) -> None:
    """Of the page and of the failure the result is written besides, whichever came first."""

    class Both(SeedSpider):
        name = "both"

        async def parse(self, response: Response) -> AsyncIterator[Any]:  # type: ignore[override]
            for path in ("page", "refused", "page/2"):
                yield Request(f"http://h.test/{path}", callback=self.both, errback=self.both)

        def both(self, answer: Response | Failure) -> None:
            """Tells them apart."""

    engine.ANSWERS["/refused"] = Mock(side_effect=ConnectionRefusedError("no"))
    found = crawl(tmp_path, [SEED], Both, RETRY_ENABLED=False)
    said = {document["url"][len("http://h.test/") :]: document["description"] for document in found.documents.values()}
    assert said == {"list": None, "page": None, "page/2": None, "refused": "ConnectionRefusedError: no"}


@pytest.mark.parametrize("is_usual", [False, True])
def test_a_check_renews_a_stored_failure_though_page_results_are_turned_off(tmp_path: Path, is_usual: bool) -> None:
    """Else a page that answers again is gone for ever, and due for ever."""
    own = type("Off", (SeedSpider,), {"page_results": False}) if is_usual else spider({"a": 1}, page_results=False)
    check = {"url": "http://h.test/a", "meta": {"url_id": "a", "if_changed": True}}
    status, bodies = iter([404, 200, 200]), iter(["none", "one", "two"])
    engine.ANSWERS["/a"] = lambda request: page(request, f"<p>{next(bodies)}", next(status))
    found = [crawl(tmp_path, [check], own, SITE_GONE_AFTER=1) for _ in range(3)]
    stored = [each.documents["a"] for each in found]
    assert [each["status"] for each in stored] == [404, 200, 200]
    assert [bool(each.get("gone_at")) for each in stored] == [True, False, False]
    assert [each["description"] is None for each in stored] == [False, True, True]
    assert stored[1]["body"] != stored[2]["body"]


def test_page_results_can_be_turned_off_but_for_failures(tmp_path: Path) -> None:
    """Each seed ends as something that can be found."""
    engine.ANSWERS["/gone"] = lambda request: page(request, "gone", 404)
    seeds = [SEED, {"url": "http://h.test/gone", "meta": {"url_id": "gone"}}]
    found = crawl(tmp_path, seeds, spider({"a": 1}, page_results=False))
    assert {key: d["description"] for key, d in found.documents.items()} == {"gone": "HTTP 404 Not Found"}
    assert set(found.items) == {"list-1", "gone-1"}
    assert (found.seeds["completed_with_result"], found.seeds["completed_with_failure"]) == (1, 1)
    found = crawl(tmp_path / "default", seeds, type("Off", (SeedSpider,), {"page_results": False}))
    assert set(found.documents) == {"gone"}


def test_a_seed_done_twice_leaves_the_same_documents(tmp_path: Path) -> None:
    """By place, and by `item_id`; the later one replaces the whole document."""
    crawl(tmp_path, [SEED], spider({"a": 1, "old": True}, {"item_id": "x", "a": 2}, {"item_id": 7}))
    found = crawl(tmp_path, [SEED], spider({"a": 3}, {"item_id": "x", "a": 4}, {"item_id": 7}))
    for item in found.items.values():
        del item["_page"]
    assert found.items == {"list-1": {"a": 3}, "x": {"item_id": "x", "a": 4}, "7": {"item_id": 7}}


class SlowForTheFirst:
    """A pipeline through which a later item comes first."""

    async def process_item(self, item: Any) -> Any:
        await asyncio.sleep(0.1 if item == {"n": 1} else 0)
        return item


def test_the_place_on_the_page_is_that_in_which_the_spider_gives_it(tmp_path: Path) -> None:
    """Not that in which slow pipelines let items through; one that is dropped or fails has a place, too.

    An error is said in the result of the page.
    """
    errors = {2: DropItem("not wanted"), 4: ValueError("no price")}
    failing = pipeline(lambda item: errors.get(item["n"]) if isinstance(item, dict) else None)
    pipelines = {SlowForTheFirst: 1, failing: 2, **WRITES}
    items = [{"n": number} for number in range(1, 6)]
    for count, said in ((3, None), (5, "ValueError in an item pipeline: no price")):
        found = crawl(tmp_path / str(count), [SEED], spider(*items[:count]), ITEM_PIPELINES=pipelines)
        assert {key: item["n"] for key, item in found.items.items()} == {
            f"list-{place}": place for place in (1, 3, 5) if place <= count
        }
        assert found.documents["list"]["description"] == said


def test_feeds_and_signals_see_items_and_no_results(tmp_path: Path) -> None:
    """A spider of one's own gives items; the result of the page is not its item."""
    seen: list[Any] = []

    class Listening(ItemSpider):
        given = ({"a": 1}, Book(title="t"))

        @classmethod
        def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
            made = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(made.scraped, signal=signals.item_scraped)
            return made

        def scraped(self, item: Any) -> None:
            seen.append(item)

    out = tmp_path / "out.jsonl"
    found = crawl(tmp_path / "data", [SEED], Listening, FEEDS={str(out): {"format": "jsonlines"}})
    assert [json.loads(line) for line in out.read_text().splitlines()] == [{"a": 1}, {"title": "t"}]
    assert seen == [{"a": 1}, Book(title="t")]
    assert set(found.documents) == {"list"}


def test_a_callback_beside_parse_gives_items_alone_also_where_its_page_fails(tmp_path: Path) -> None:
    """Results of pages are given by parse."""
    urls: list[str] = []

    class Detailed(SeedSpider):
        seed_callbacks = ("parse", "detail")

        def detail(self, response: Response) -> None:
            """Is not called."""

    look = pipeline(lambda item: urls.append(item.url))  # type: ignore[func-returns-value]
    engine.ANSWERS["/refused"] = Mock(side_effect=ConnectionRefusedError("no"))
    seeds = [SEED, *({"url": f"http://h.test/refused?{name}", "callback": name} for name in Detailed.seed_callbacks)]
    found = crawl(tmp_path, seeds, Detailed, RETRY_ENABLED=False, ITEM_PIPELINES={look: 1, **WRITES})
    assert sorted(urls) == ["http://h.test/list", "http://h.test/refused?parse"]
    said = [document["description"] for document in found.documents.values()]
    assert said.count("ConnectionRefusedError: no") == 2


@pytest.mark.parametrize("gives", ["items", "results"])
def test_pipelines_and_feeds_see_pages_that_fail_where_the_spider_gives_results_alone(
    tmp_path: Path, gives: str
) -> None:
    """Nor a check that finds a page unchanged: a pipeline for items would raise, and take the place of the reason."""
    kinds: list[str] = []

    class Looking:
        def process_item(self, item: Any) -> Any:
            kinds.append(type(item).__name__)
            return item if isinstance(item, Result) else {"a": item["a"]}

    own = spider({"a": 1}) if gives == "items" else SeedSpider
    engine.ANSWERS["/refused"] = Mock(side_effect=ConnectionRefusedError("no"))
    engine.ANSWERS["/same"] = lambda request: page(request, "same", 304 if "If-None-Match" in request.headers else 200)
    refused = {"url": "http://h.test/refused", "meta": {"url_id": "refused"}}
    check = {"url": "http://h.test/same", "meta": {"url_id": "same", "if_changed": True, "etag": '"1"'}}
    crawl(tmp_path, [{"url": "http://h.test/same", "meta": {"url_id": "same"}}], own)
    out = tmp_path / "out.jsonl"
    settings = {"ITEM_PIPELINES": {Looking: 1, **WRITES}, "FEEDS": {str(out): {"format": "jsonlines"}}}
    found = crawl(tmp_path, [SEED, refused, check], own, RETRY_ENABLED=False, **settings)
    assert kinds == (["dict"] if gives == "items" else ["Result"] * 3)
    assert len(out.read_text().splitlines()) == len(kinds)
    assert found.documents["refused"]["description"] == "ConnectionRefusedError: no"
    assert found.documents["same"]["unchanged"]
    assert (found.seeds["completed_with_result"], found.seeds["completed_with_failure"], found.lag) == (2, 1, 0)


def test_a_result_that_the_spider_gives_itself_is_written_once_as_a_result(tmp_path: Path) -> None:
    """Also one that a pipeline makes a dict of; an item with a url_id of its own stays an item."""

    class Both(SeedSpider):
        async def parse(self, response: Response) -> AsyncIterator[Any]:  # type: ignore[override,misc]
            yield {"url_id": "mine", "a": 1}
            for output in await super().parse(response):
                yield output

    kinds: list[Any] = []

    class Flattening:
        def process_item(self, item: Any) -> Any:
            kinds.append(type(item))
            return {**item.document(), "mine": 1} if isinstance(item, Result) else item

    found = crawl(tmp_path, [SEED], Both, ITEM_PIPELINES={Flattening: 1, **WRITES})
    assert kinds == [dict, Result]
    assert {key: document["mine"] for key, document in found.documents.items()} == {"list": 1}
    assert {key: item["url_id"] for key, item in found.items.items()} == {"list-1": "mine"}


CIRCLE: dict[str, Any] = {"a": 1}
CIRCLE["me"] = [CIRCLE]
DEEP: Any = []
for _ in range(10_000):
    DEEP = [DEEP]
CANNOT = "of the item cannot be stored:"
UNWRITABLE: dict[str, tuple[Any, str]] = {
    "bytes": ({"raw": b"x"}, f"field 'raw' {CANNOT} JSON has no words for the class bytes"),
    "object": ({"deep": [{"er": object()}]}, f"field 'deep' {CANNOT} JSON has no words for the class object"),
    "nan": ({"price": float("nan")}, f"field 'price' {CANNOT} Out of range float"),
    "circle": (CIRCLE, f"field 'me' {CANNOT} Circular reference"),
    "deep": ({"deep": DEEP}, f"field 'deep' {CANNOT} maximum recursion depth"),
    "huge": ({"text": "x" * 20_000_000}, "the item has more than 16000000 bytes"),
    "key": ({"a": {(1, 2): 3}}, f"field 'a' {CANNOT} keys must be str"),
    "item_id": ({"item_id": ["x"]}, "item_id is \"['x']\", but must be text or a whole number"),
    "page": ({"_page": 1}, "the item has a field '_page' of its own"),
}


def test_an_item_that_cannot_be_stored_is_a_dead_letter_that_names_the_page(tmp_path: Path) -> None:
    """The page's other items and its result are there."""

    class Unwritable(SeedSpider):
        def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
            yield from ({"a": 1}, UNWRITABLE[response.url.rpartition("/")[2]][0], {"a": 3})

    seeds = {case: {"url": f"http://h.test/{case}", "meta": {"url_id": case}} for case in UNWRITABLE}
    found = crawl(tmp_path, list(seeds.values()), Unwritable)
    letters = {json.loads(letter.value or b"")["meta"]["url_id"]: letter for letter in found.dead_letters}
    for case, (_, reason) in UNWRITABLE.items():
        error = dict(letters[case].headers)["error"].decode()
        assert json.loads(letters[case].value or b"") == seeds[case]
        assert reason in error
        assert f"http://h.test/{case}" in error
        assert found.documents[case]["status"] == 200
    assert set(found.items) == {f"{case}-{place}" for case in UNWRITABLE for place in (1, 3)}
    assert (found.lag, found.seeds["dead_lettered"]) == (0, len(UNWRITABLE))


class PickySink(ScriptedSink):
    """Takes results, and of items those that are not bad."""

    name = "picky"
    taken: ClassVar[list[Record]] = []

    @classmethod
    def for_items(cls, settings: Any) -> Any:
        return cls()

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        self.taken.extend(records)
        bad = Verdict(Answer.REJECTED, "mapper_parsing_exception")
        return [bad if record.document.get("bad") else ACKNOWLEDGED for record in records]


def test_an_item_that_a_sink_refuses_is_a_dead_letter_with_its_words(tmp_path: Path) -> None:
    found = crawl(tmp_path, [SEED], spider({"a": 1}, {"bad": True}), SITE_SINKS=f"local,{__name__}.PickySink")
    (letter,) = found.dead_letters
    error = dict(letter.headers)["error"].decode()
    assert error == "item list-2: mapper_parsing_exception (page http://h.test/list)"
    assert set(found.items) == {"list-1", "list-2"}
    assert [record.kind for record in PickySink.taken].count("item") == 2


def test_without_a_sink_for_items_they_are_dead_letters_and_not_lost(tmp_path: Path) -> None:
    """A sink of somebody's own from before there were items."""
    local = "site_spider.adapters.local.results"
    found = crawl(
        tmp_path,
        [SEED],
        spider({"a": 1}),
        SITE_SINKS="plain",
        SITE_SINK_CLASSES={"plain": "tests.in_process.scripted_sink.ScriptedSink", "local": f"{local}.LocalSink"},
        SITE_READER_CLASSES={"plain": f"{local}.LocalResults"},
    )
    (letter,) = found.dead_letters
    assert "no sink of SITE_SINKS takes items" in dict(letter.headers)["error"].decode()


@pytest.mark.parametrize("kind", ["item", "result"])
def test_a_page_may_give_more_than_memory_takes(kind: str, tmp_path: Path) -> None:
    """It goes on as the sinks take items, and documents of other pages."""
    most: list[int] = []

    class Many(SeedSpider):
        def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
            from site_spider.engine.scrapy_parts import part_of
            from site_spider.results.pipeline import Sinks

            sinks = part_of(self.crawler, Sinks)
            assert sinks is not None
            for number in range(600):
                most.append(sum(delivery.backlog_bytes for delivery in sinks))
                text = "x" * 10_000
                yield {"n": number, "text": text} if kind == "item" else Result(f"entry-{number}", 200, body=text)

    found = crawl(tmp_path, [SEED], Many, SITE_SINK_BACKLOG_BYTES=500_000)
    assert len(found.items if kind == "item" else found.documents) >= 600
    assert max(most) < 700_000


# --- Pages that were received, and then something of the user's own failed on them


URL = "http://h.test/p"
BODY = "<p>what the site said"


@pytest.fixture(autouse=True)
def site() -> None:
    engine.ANSWERS["/p"] = lambda request: page(request, BODY)


def document_of(folder: Path, spider: type[SeedSpider], **settings: Any) -> dict[str, Any]:
    """The one that the seed has, which says all that is known of the page."""
    (document,) = crawl(folder, [{"url": URL}], spider, **settings).documents.values()
    assert document["fetched_at"]
    assert (document["status"], document["final_url"], document["spider"]) == (200, URL, spider.name)
    assert document["headers"] == '{"Content-Type": ["text/html; charset=utf-8"]}'
    return document


class Raises(SeedSpider):
    def parse(self, response: Response) -> Any:
        raise ValueError("on purpose")


class RaisesHalfWay(SeedSpider):
    async def parse(self, response: Response) -> AsyncIterator[Any]:  # type: ignore[override]
        yield {"title": "first"}
        raise ValueError("on purpose")


class WantsItemsAlone(Raises):
    page_results = False


class HasABrokenPageResult(Raises):
    async def page_result(self, response: Response) -> Result | None:
        raise KeyError("another one")


@pytest.mark.parametrize("spider", [Raises, RaisesHalfWay, WantsItemsAlone, HasABrokenPageResult])
def test_a_callback_that_raises_leaves_the_page_as_it_was_received(
    spider: type[SeedSpider], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The traceback begins with the line of the spider: how the engine came there is the same for all."""
    document = document_of(tmp_path, spider)
    assert (document["body"], document["description"]) == (BODY, "ValueError in the spider: on purpose")
    record = next(record for record in caplog.records if "Spider error" in record.getMessage())
    assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])] == ["parse"]


def test_a_failure_on_a_page_that_is_an_error_itself_says_both(tmp_path: Path) -> None:
    """The reason is that of the spider."""
    engine.ANSWERS["/p"] = lambda request: page(request, BODY, 404)
    (document,) = crawl(tmp_path, [{"url": URL}], Raises).documents.values()
    assert document["description"] == "ValueError in the spider: on purpose (HTTP 404 Not Found)"
    assert (document["reason"], document["status"]) == ("ValueError in the spider", 404)


@pytest.mark.parametrize("spider", [Raises, WantsItemsAlone])
def test_a_large_page_is_there_whole(spider: type[SeedSpider], tmp_path: Path) -> None:
    """It is read as that of a callback that does not raise."""
    body = "<p>" + "x" * 2 * LARGE_BYTES
    engine.ANSWERS["/p"] = lambda request: page(request, body)
    assert document_of(tmp_path, spider)["body"] == body


class GivesItsResultFirst(SeedSpider):
    async def parse(self, response: Response) -> list[Any]:
        return [*await super().parse(response), {"title": "x"}]


@pytest.mark.parametrize(("error", "of"), [(ValueError, dict), (ValueError, object), (DropItem, object)])
def test_a_pipeline_that_fails_is_said_in_the_document_of_the_page(
    error: type[Exception], of: type, tmp_path: Path
) -> None:
    """Also where the spider gave the result of the page before the item."""
    failing = pipeline(lambda item: error("on purpose") if isinstance(item, of) else None)
    document = document_of(tmp_path, GivesItsResultFirst, ITEM_PIPELINES={failing: 100, **WRITES})
    assert document["body"] == BODY
    assert "on purpose" in document["description"]


class Refuses:
    def process_spider_input(self, response: Response) -> None:
        raise ValueError("on purpose")


class FailsAfterwards:
    def process_spider_output(self, response: Response, result: Any) -> Iterator[Any]:
        raise ValueError("on purpose")
        yield

    async def process_spider_output_async(self, response: Response, result: Any) -> AsyncIterator[Any]:
        raise ValueError("on purpose")
        yield


@pytest.mark.parametrize("middleware", [Refuses, FailsAfterwards])
def test_a_spider_middleware_that_raises_leaves_the_page_as_it_was_received(middleware: type, tmp_path: Path) -> None:
    """Before the callback and behind it."""
    document = document_of(tmp_path, SeedSpider, SPIDER_MIDDLEWARES={middleware: 10})
    assert document["body"] == BODY
    assert "ValueError" in document["description"]
    assert "on purpose" in document["description"]


def test_a_document_that_a_spider_makes_itself_has_a_time_and_the_name_of_the_spider(tmp_path: Path) -> None:
    """Kibana finds none without a time."""

    class MakesItsOwn(SeedSpider):
        name = "own"

        def parse(self, response: Response) -> Any:  # type: ignore[override]
            yield Result(page_of(response).url_id, response.status, body="mine")
            yield Result("another", description="not looked at")

    documents = crawl(tmp_path, [{"url": URL}], MakesItsOwn).documents.values()
    assert len(documents) == 2
    assert all(document["fetched_at"] and document["spider"] == "own" for document in documents)


class Answers:
    def process_spider_exception(self, response: Response, exception: Exception) -> list[Any]:
        return [{"title": "instead"}, Result(page_of(response).url_id, response.status, body="instead")]


def test_a_middleware_may_have_an_answer_to_a_callback_that_raises(tmp_path: Path) -> None:
    """Then the page is as the middleware says."""
    (document,) = crawl(tmp_path, [{"url": URL}], Raises, SPIDER_MIDDLEWARES={Answers: 10}).documents.values()
    assert (document["body"], document["description"]) == ("instead", None)
