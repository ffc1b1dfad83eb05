"""Every panel is asked of a real Elasticsearch, over what a real crawl wrote there."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from scrapy.http import Response

from site_spider import settings as project
from site_spider.spiders.crawl_spider import SeedSpider
from tests.adapters.raw_server import Asked, answering, said
from tests.contracts.sinks import drop_index
from tests.in_process.engine import crawl
from tests.real_servers import elasticsearch_client
from tests.tools.test_kibana import layer_of, panels
from tools.kibana import FILE

_More = Callable[[Mapping[str, Any], str], dict[str, Any]]
_PLAIN: _More = lambda params, step: {}  # noqa: E731
_OF_FIELD: dict[str, tuple[str, _More]] = {
    "count": ("value_count", _PLAIN),
    "sum": ("sum", _PLAIN),
    "average": ("avg", _PLAIN),
    "max": ("max", _PLAIN),
    "min": ("min", _PLAIN),
    "unique_count": ("cardinality", _PLAIN),
    "median": ("percentiles", lambda params, step: {"percents": [50]}),
    "percentile": ("percentiles", lambda params, step: {"percents": [params["percentile"]]}),
    "terms": ("terms", lambda params, step: {"size": params["size"]}),
    "date_histogram": ("date_histogram", lambda params, step: {"fixed_interval": step, "min_doc_count": 1}),
}
_NUMERIC = {"sum", "average", "max", "min", "median", "percentile"}
_NUMBERS = {"long", "integer", "short", "byte", "double", "float", "half_float", "scaled_float"}


def request_of(lens: Mapping[str, Any], step: str = "1s") -> dict[str, Any]:
    """The search of a panel; `step` is what Kibana chooses by the time range."""
    layer = layer_of(lens)
    columns = [(name, layer["columns"][name]) for name in layer["columnOrder"]]
    values = {name: aggregation(column, step) for name, column in columns if not column["isBucketed"]}
    aggs = {name: one for name, one in values.items() if one is not None}
    for name, column in reversed([one for one in columns if one[1]["isBucketed"]]):
        group = aggregation(column, step)
        assert group is not None
        aggs = {name: {**group, **({"aggs": aggs} if aggs else {})}}
    asked = lens["state"]["query"]["query"]
    query = {"query_string": {"query": asked}} if asked else {"match_all": {}}
    return {"size": 0, "query": query, "aggs": aggs, "track_total_hits": True}


def aggregation(column: Mapping[str, Any], step: str) -> dict[str, Any] | None:
    """None for a count of documents, which every bucket has."""
    operation, field, params = column["operationType"], column.get("sourceField"), column["params"]
    if operation == "count" and field == "___records___":
        return None
    if operation == "filters":
        asked = {one["label"]: {"query_string": {"query": one["input"]["query"]}} for one in params["filters"]}
        return {"filters": {"filters": asked}}
    if operation == "last_value":
        newest = {"size": 1, "sort": [{params["sortField"]: "desc"}], "_source": False, "fields": [field]}
        return {"filter": {"exists": {"field": field}}, "aggs": {"last": {"top_hits": newest}}}
    name, more = _OF_FIELD[operation]
    return {name: {"field": field, **more(params, step)}}


def fields_of(lens: Mapping[str, Any]) -> Iterator[tuple[str, set[str]]]:
    """Each field that a panel reads, and the types that it may have; no type: any that can be aggregated."""
    for column in layer_of(lens)["columns"].values():
        field = column.get("sourceField", "___records___")
        if field != "___records___":
            is_number = column["operationType"] in _NUMERIC
            is_time = column["operationType"] == "date_histogram"
            yield field, _NUMBERS if is_number else {"date"} if is_time else set()
            yield (
                field,
                ({"date"} if column["dataType"] == "date" else _NUMBERS)
                if (column["dataType"] != "string" and column["operationType"] in ("terms", "last_value"))
                else set(),
            )


def empty_columns(lens: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
    """The columns that nothing is shown in, and those where a filter has found no document at any time."""
    layer = layer_of(lens)
    levels = [*_levels(answer, layer["columnOrder"])]
    return [
        name
        for name in layer["columnOrder"]
        if not any(_has_figure(name, level) for level in levels) or _empty_filters(name, levels)
    ]


def _empty_filters(name: str, levels: list[tuple[int, Mapping[str, Any]]]) -> set[str]:
    """The labels of a column of filters without documents: each may have them in another step of time."""
    counts: dict[str, int] = {}
    for _, level in levels:
        buckets = level.get(name, {}).get("buckets", [])
        for label, bucket in buckets.items() if isinstance(buckets, dict) else []:
            counts[label] = counts.get(label, 0) + bucket["doc_count"]
    return {label for label, count in counts.items() if not count}


def _levels(answer: Mapping[str, Any], names: list[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The whole answer, and each bucket of it, with the number of documents."""
    total = answer["hits"]["total"]["value"]
    waiting: list[tuple[int, Mapping[str, Any]]] = [(total, answer.get("aggregations", {}))]
    while waiting:
        count, level = waiting.pop()
        yield count, level
        for name in names:
            buckets = level.get(name, {}).get("buckets", [])
            found = buckets.values() if isinstance(buckets, dict) else buckets
            waiting += [(bucket["doc_count"], bucket) for bucket in found]


def _has_figure(name: str, level: tuple[int, Mapping[str, Any]]) -> bool:
    count, values = level
    found = values.get(name)
    if found is None:  # a count of documents, or a column of another level
        return name.startswith("y") and count > 0
    if "buckets" in found:
        return bool(found["buckets"])
    if "last" in found:
        return bool(found["last"]["hits"]["hits"])
    if "values" in found:
        return any(value is not None for value in found["values"].values())
    return found["value"] is not None


pytestmark = pytest.mark.xdist_group("kibana")  # they share a crawl
EXPORT = FILE.read_text(encoding="utf-8")
LENS = [pytest.param(lens, id=f"{board}: {lens['title']}") for board, lens in panels(EXPORT)]
SETTINGS = {"site_results*": "SITE_RESULTS_INDEX", "site_items*": "SITE_ITEMS_INDEX", "site_stats*": "SITE_STATS_INDEX"}
VIEWS = {
    one["id"]: SETTINGS.get(one["attributes"]["title"])
    for one in map(json.loads, EXPORT.splitlines()[:-1])
    if one["type"] == "index-pattern"
}


def page(asked: Asked) -> bytes:
    """With links; a redirect, and failures of each kind."""
    if asked.path == "/robots.txt":
        return said(b"User-agent: *\nDisallow: /private", kind="text/plain")
    status = int(asked.path[1:4]) if asked.path[1:4].isdigit() else 200
    links = "".join(f'<a href="/{name}">x</a>' for name in ("a", "b", "404", "302"))
    return said(f"<html lang=fr><p>Café {links}".encode(), status, "text/html; charset=utf-8", b"Location: /a\r\n")


class WithItems(SeedSpider):
    """Gives the result of each page, an item, and the links; slow enough for some documents of statistics."""

    async def parse(self, response: Response) -> list[Any]:
        await asyncio.sleep(0.05)
        return [*await super().parse(response), {"title": "Café", "price": 1}]


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory, elasticsearch_hosts: str) -> Iterator[dict[str, str]]:
    """The names of the indices that a crawl of a loopback site has written."""
    indices = {name: f"kibana-{name.split('_')[1].lower()}-{uuid.uuid4().hex}" for name in SETTINGS.values()}
    with answering(page) as site, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
        seeds: list[Any] = [
            {"url": url, "meta": {"task_id": "spring"}}
            for url in (f"{site}/start", f"{site}/503", f"{site}/private", f"{nobody}/", "http://nohost.invalid/")
        ]
        found = crawl(
            tmp_path_factory.mktemp("crawl"),
            [*seeds, b"no seed"],
            WithItems,
            run=asyncio.run,
            SITE_TEXT="plain",
            DOWNLOAD_HANDLERS=project.DOWNLOAD_HANDLERS,
            ROBOTSTXT_OBEY=True,
            SITE_ROBOTS_WAIT_SECONDS=0.5,
            SITE_ALLOW_PRIVATE_HOSTS=True,
            SITE_SINKS="elasticsearch",
            SITE_ELASTICSEARCH_HOSTS=elasticsearch_hosts,
            **indices,
        )
    assert found.exit_code == 0
    with elasticsearch_client(elasticsearch_hosts) as client:
        client.indices.refresh(index=",".join(indices.values()))
    yield {**indices, "SITE_ELASTICSEARCH_HOSTS": elasticsearch_hosts}
    for index in indices.values():
        drop_index({"SITE_ELASTICSEARCH_HOSTS": elasticsearch_hosts, "SITE_RESULTS_INDEX": index})


def index_of(lens: dict[str, Any], crawled: dict[str, str]) -> str:
    name = VIEWS[lens["references"][0]["id"]]
    assert name is not None
    return crawled[name]


@pytest.mark.servers
@pytest.mark.parametrize("lens", LENS)
def test_a_panel_has_figures(lens: dict[str, Any], crawled: dict[str, str]) -> None:
    """No column of it is empty, and each field is mapped as the column needs it."""
    with elasticsearch_client(crawled["SITE_ELASTICSEARCH_HOSTS"]) as client:
        index = index_of(lens, crawled)
        for field, kinds in fields_of(lens):
            known = client.field_caps(index=index, fields=field)["fields"].get(field)
            assert known, f"{field} is not mapped"
            assert all(one["aggregatable"] for one in known.values()), f"{field} cannot be aggregated"
            assert not kinds or known.keys() <= kinds, f"{field} is {[*known]}"
        answer = client.search(index=index, **request_of(lens))
        assert answer["_shards"]["failed"] == 0
        assert empty_columns(lens, answer) == []


@pytest.mark.servers
def test_the_columns_of_a_search_are_fields(crawled: dict[str, str]) -> None:
    searches = [one for one in map(json.loads, EXPORT.splitlines()[:-1]) if one["type"] == "search"]
    assert searches
    with elasticsearch_client(crawled["SITE_ELASTICSEARCH_HOSTS"]) as client:
        for search in searches:
            index = crawled[VIEWS[search["references"][0]["id"]] or ""]
            ((field, order),) = search["attributes"]["sort"]
            asked = search["attributes"]["columns"]
            assert client.field_caps(index=index, fields=asked)["fields"].keys() >= set(asked)
            answer = client.search(
                index=index, query={"simple_query_string": {"query": "cafe"}}, sort=[{field: order}], fields=asked
            )
            assert answer["hits"]["total"]["value"] > 0
            for column in asked:
                assert client.count(index=index, query={"exists": {"field": column}})["count"] > 0, column
