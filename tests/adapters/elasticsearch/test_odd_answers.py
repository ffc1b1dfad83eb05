"""What Elasticsearch, or whatever stands in its place, says that makes no sense: kept, retried, said once."""

from __future__ import annotations

import json
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from itertools import repeat
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from site_spider.adapters.elasticsearch import client as client_module
from site_spider.adapters.elasticsearch.client import BoundedNode, ElasticsearchOptions
from site_spider.adapters.elasticsearch.results import ElasticsearchResults
from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.bounded import LogLimit
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import SinkUnavailable
from site_spider.results.document import Result
from tests.adapters.elasticsearch.played import KEYS, RECORDS, bulk, good, item, settings_for, to, write_to
from tests.adapters.raw_server import PRODUCT, Asked, Said, answering, said
from tests.contracts.trials import written


def everywhere(status: int = 200) -> Iterator[bytes]:
    """Headers without end."""
    yield b"HTTP/1.1 %d OK\r\n" % status
    yield from repeat(b"X-More: " + b"x" * 1000 + b"\r\n")


def endless() -> Iterator[bytes]:
    """A body without end, in chunks."""
    yield (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n%b\r\n" % PRODUCT)
    yield from repeat(b"10000\r\n" + b" " * 65536 + b"\r\n")


@cache
def bomb() -> bytes:
    """100 MB of blanks in 100 KB."""
    packer = zlib.compressobj(9, wbits=31)
    packed = b"".join(packer.compress(b" " * 1_000_000) for _ in range(100)) + packer.flush()
    return said(packed, more=b"Content-Encoding: gzip\r\n")


GOOD = [item(key) for key in KEYS]
ODD: dict[str, Said | Callable[[], Said]] = {
    "html": said(b"<html>\x1b[2Jplease log in</html>", kind="text/html"),
    "html as json": said(b"<html>please log in</html>"),
    "html with an error": said(b"<html>bad request</html>", status=400, kind="text/html"),
    "error as text": said({"error": "no such thing", "status": 400}, status=400),
    "error as a list": said({"error": [1], "status": 400}, status=400),
    "error as a list in a list": said([[1]], status=400),
    "error that is null": said(b"null", status=500),
    "error with a type that is a list": said({"error": {"type": ["x"], "reason": {}}}, status=400),
    "strange words": said({"error": {"type": "x", "caused_by": "y"}}, status=503),
    "null": said(b"null"),
    "list": said([1, 2, 3]),
    "number": said(b"7"),
    "text": said(b'"ok"'),
    "nothing": said(b""),
    "no content": b"HTTP/1.1 204 No Content\r\n" + PRODUCT + b"\r\n",
    "unknown kind": said(b"{}", kind="application/strange"),
    "nested": said(b"[" * 200_000),
    "nested error": said(b"[" * 200_000, status=400),
    "deep error": said(b'{"error":' + b'{"caused_by":' * 900 + b"{}" + b"}" * 901, status=503),
    "long number": said(b"1" * 10_000),
    "bad utf-8": said(b'{"errors":false,"items":["\xff\xfe"]}'),
    "half": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
    "truncated": said(b'{"errors":false,"items":['),
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "nothing at all": b"",
    "no items": said({"errors": False}),
    "items null": bulk(None),
    "items as a mapping": bulk({"update": {}}),
    "items as text": bulk("abc"),
    "items of text": bulk(["update"] * 3),
    "items without update": bulk([{"index": {"_id": key, "status": 200}} for key in KEYS]),
    "items with null": bulk([{"update": None}] * 3),
    "items with lists": bulk([{"update": []}] * 3),
    "fewer": bulk(GOOD[:2]),
    "more": bulk([*GOOD, item("d")]),
    "none": bulk([]),
    "other order": bulk(GOOD[::-1]),
    "wrong ids": bulk([item("x") for _ in KEYS]),
    "ids as numbers": bulk([item(7) for _ in KEYS]),
    "no ids": bulk([{"update": {"status": 200}}] * 3),
    "status as text": bulk([item(key, "200") for key in KEYS]),
    "status as true": bulk([item(key, True) for key in KEYS]),
    "status as a fraction": bulk([item(key, 200.5) for key in KEYS]),
    "status null": bulk([item(key, None) for key in KEYS]),
    "status 0": bulk([item(key, 0) for key in KEYS]),
    "no status": bulk([{"update": {"_id": key}} for key in KEYS]),
    "errors as text": bulk(GOOD, errors="no"),
    "errors null": bulk(GOOD, errors=None),
    "errors that are none": bulk(GOOD, errors=True),
    "no errors and yet some": bulk([item("a", 400, error={"type": "x"}), *GOOD[1:]]),
    "a redirect to itself": said(b"", status=302, more=b"Location: /\r\n"),
    "bomb": bomb,
    "endless headers": everywhere,
    "endless body": endless,
}


def odd(name: str) -> Said:
    answer = ODD[name]
    return answer() if callable(answer) else answer


def complaint(action: Callable[[], Any]) -> str:
    """What SinkUnavailable says that it raises; empty if it raises nothing."""
    try:
        action()
    except SinkUnavailable as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_an_outage_that_says_what_came(name: str) -> None:
    """So that somebody sees which proxy it was. Of an answer without bounds 100 MB and more are not held."""
    if callable(ODD[name]):
        tracemalloc.start()
    try:
        with pytest.raises(SinkUnavailable) as caught:
            write_to(to("_bulk", odd(name)))
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
    assert name != "html" or r"\x1b[2Jplease log in" in str(caught.value)


@pytest.mark.parametrize("where", ["_cluster", "_index_template", "_mapping"])
@pytest.mark.parametrize("name", [name for name, one in ODD.items() if callable(one) or b'"items": ' not in one])
def test_an_odd_answer_while_opening_is_an_outage_or_passed_over(name: str, where: str) -> None:
    """Health and template are no reason to stumble."""
    verdicts: list[Verdict] = []
    said_so = complaint(lambda: verdicts.extend(write_to(to(where, odd(name)))))
    assert said_so or [verdict.answer for verdict in verdicts] == [Answer.ACKNOWLEDGED] * 3
    assert said_so.isprintable()
    assert len(said_so) < 1000


@pytest.mark.parametrize(
    "templates",
    [
        *([{"name": "x"}], [{"index_template": {"version": "many"}}], [{"index_template": {"version": []}}]),
        *(None, [1, None]),
    ],
    ids=str,
)
def test_an_odd_template_is_replaced_by_ours(templates: Any) -> None:
    """As one without a version is."""
    put = []

    def answer(asked: Asked) -> Said:
        if asked.method == "PUT" and "_index_template" in asked.path:
            put.append(asked.path)
        if asked.method == "GET" and "_index_template" in asked.path:
            return said({"index_templates": templates})
        return good(asked)

    write_to(answer)
    assert len(put) == 1


def test_a_server_before_8_14_gets_a_template_without_what_it_does_not_know() -> None:
    """Such an index refuses documents with names beyond its limit of fields."""
    put = []

    def answer(asked: Asked) -> Said:
        if asked.method == "PUT" and "_index_template" in asked.path:
            put.append(b"ignore_dynamic_beyond_limit" in asked.body)
            if put[-1]:
                reason = "unknown setting [index.mapping.total_fields.ignore_dynamic_beyond_limit]"
                return said({"error": {"type": "illegal_argument_exception", "reason": reason}}, status=400)
        return good(asked)

    with answering(answer) as address:
        written(ElasticsearchSink.for_statistics(settings_for(address)), RECORDS)
    assert put == [True, False]


def test_a_check_leaves_the_text_of_a_page_where_the_server_makes_none() -> None:
    """The document of a check that failed, or that found the page the same, has no body: nor is it emptied."""
    documents: list[dict[str, Any]] = []

    def answer(asked: Asked) -> Said:
        if asked.method == "PUT" and b"char_filter" in asked.body:
            return said({"error": {"type": "illegal", "reason": "failed to find char_filter"}}, status=400)
        if "_bulk" in asked.path:
            documents.extend(json.loads(line)["doc"] for line in asked.body.splitlines()[1::2])
        return good(asked)

    results = [Result("a", 200, "{}", "<p>text"), Result("a", 500, unchanged=None), Result("a", unchanged=True)]
    write_to(answer, *[[Record("a", result.document(), 100)] for result in [*results, Result("a")]])
    assert [document.get("body_text", "left") for document in documents] == ["text", "left", "left", None]


@pytest.mark.parametrize("error", ["because", ["because"], 7, {"type": ["because"]}, {"caused_by": "because"}])
@pytest.mark.parametrize("status", [503, 400])
def test_a_reason_of_a_wrong_shape_is_shown_and_refuses_nothing(status: int, error: Any) -> None:
    """Who is refused is said by the status and the type; a 400 whose error has none may be a proxy's: rule 7."""
    verdicts = write_to(to("_bulk", bulk([item("a", status, error=error), *GOOD[1:]], errors=True)))
    assert [verdict.answer for verdict in verdicts] == [Answer.RETRY, *[Answer.ACKNOWLEDGED] * 2]
    assert "because" in verdicts[0].reason or error == 7


def test_a_long_reason_is_cut() -> None:
    """It goes into a header of the dead letter, and onto terminals."""
    error = {"type": "document_parsing_exception", "reason": "\x1b]0;" + "x" * 100_000}
    verdicts = write_to(to("_bulk", bulk([item("a", 400, error=error), *GOOD[1:]], errors=True)))
    assert verdicts[0].answer is Answer.REJECTED
    assert len(verdicts[0].reason) < 1000
    assert verdicts[0].reason.isprintable()


@pytest.mark.parametrize("hosts", [1, 2])
def test_what_pages_held_before_may_be_too_much_for_an_answer(hosts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Binary content of 3 MB that is gone now held the sink up for ever; a producer's stays as it is."""
    monkeypatch.setattr("site_spider.adapters.elasticsearch.client.BoundedNode.most_bytes", 100_000)
    large = "x" * 200_000
    stored: dict[str, dict[str, Any]] = {
        "ours": {"body_base64": large, "absent": "proxy,text", "proxy": "theirs"},
        "earlier": {"body_base64": large, "latency_ms": None, "redirects": 0},
        "theirs": {"body_base64": large, "proxy": large},
        "marked": {"body_base64": large, "absent": "body_base64,proxy"},
    }
    written_over: dict[str, dict[str, Any]] = {}

    def answer(asked: Asked) -> Said:
        if "_bulk" in asked.path:
            documents = [json.loads(line)["doc"] for line in asked.body.splitlines()[1::2]]
            written_over.update(zip(asked.ids, documents, strict=True))
        if "_mget" not in asked.path:
            return good(asked)
        names = parse_qs(urlsplit(asked.path).query).get("_source_includes", [""])[0].split(",")
        body = json.loads(asked.body)
        docs = {one["_id"]: one["_source"] for one in body.get("docs", ())} or dict.fromkeys(body["ids"], names)
        found = {one: {name: stored[one][name] for name in some if name in stored[one]} for one, some in docs.items()}
        return said({"docs": [{"_id": one, "_source": source} for one, source in found.items() if source]})

    records = [Record(one, Result(one, 404, "{}", description="HTTP 404").document(), 600) for one in stored]
    with answering(answer) as address:
        settings = settings_for(",".join([address, address.replace("127.0.0.1", "localhost")][:hosts]))
        verdicts = written(ElasticsearchSink.from_settings(settings), records)
    assert {verdict.answer for verdict in verdicts} == {Answer.ACKNOWLEDGED}
    nulls = {one: [name for name in ("body_base64", "proxy") if name in written_over[one]] for one in stored}
    assert nulls == {"ours": ["body_base64"], "earlier": ["body_base64", "proxy"], "theirs": [], "marked": ["proxy"]}


@pytest.mark.parametrize(
    ("kind", "is_away"),
    [
        ("es_rejected_execution_exception", True),  # its queue for reads is full, and writes have another one
        ("no_shard_available_action_exception", True),  # asked twice: a new index has its shard a moment later
        ("index_not_found_exception", False),
        ("illegal_argument_exception", False),  # an alias of several indices, of which one is written to
        ("security_exception", False),
    ],
)
def test_a_document_that_could_not_be_read_is_none_that_is_missing(
    kind: str, is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A null was written over a producer's value, which the server had not told."""
    monkeypatch.setattr("site_spider.adapters.elasticsearch.client.SHARD_SECONDS", 0.01)
    document = Result("a", 404, "{}", description="HTTP 404").document()
    unread = said({"docs": [{"_id": "a", "error": {"type": kind, "reason": "so it is"}}]})
    trial = partial(write_to, to("_mget", unread), [Record("a", document, 600)])
    if is_away:
        assert kind in complaint(trial)
    else:
        assert trial() == [ACKNOWLEDGED]


@pytest.mark.parametrize(
    ("name", "said_of"),
    [
        ("my-host", "[my-host] within [_doc]"),
        ("my.host", "[my] within [_doc]"),
        ("my.host", "[host] within [my]"),
        ("my.own.host", "[host] within [my.own]"),
    ],
)
def test_a_strict_mapping_without_a_renamed_field_refuses_no_result(name: str, said_of: str) -> None:
    """SITE_RESULT_FIELDS gives it the name; each result was a dead letter. An item keeps its fields."""
    reason = f"[1:9] mapping set to strict, dynamic introduction of {said_of} is not allowed"
    refused = {"error": {"type": "strict_dynamic_mapping_exception", "reason": reason}}

    def answer(asked: Asked) -> Said:
        if "_bulk" not in asked.path or name.encode() not in asked.body:
            return good(asked)
        return bulk([item(key, 400, **refused) for key in asked.ids], errors=True)

    document = {"status": 200, "headers": "{}", "body": "text", "description": None, name: "h.test"}
    of_result, of_nobody = (Record("a", document, 600, names=names) for names in (tuple(document), ()))
    assert write_to(answer, [of_result]) == [ACKNOWLEDGED]
    assert [verdict.answer for verdict in write_to(answer, [of_nobody])] == [Answer.REJECTED]


STRICT = "[1:9] mapping set to strict, dynamic introduction of [{}] within [_doc] is not allowed"


@pytest.mark.parametrize("may_change", [True, False])
def test_a_new_index_of_a_strict_template_of_somebody_else_gets_what_results_have(may_change: bool) -> None:
    """Its results were stored empty. Where the mapping may not be changed, one without its body is a dead letter."""
    mapped: dict[str, Any] = {}
    stored: list[dict[str, Any]] = []

    def answer(asked: Asked) -> Said:
        if "_mapping" in asked.path and asked.method == "PUT":
            if not may_change:
                return said({"error": {"type": "security_exception", "reason": "no"}}, status=403)
            mapped.update(json.loads(asked.body)["properties"])
        if "_mapping" in asked.path:
            there = {"results": {"mappings": {"dynamic": "strict", "properties": mapped}}}
            return said(there) if asked.method == "PUT" or is_there else said({"error": "none"}, status=404)
        if "_bulk" not in asked.path:
            return good(asked)
        is_there.append(True)  # the first write makes it
        [document] = [json.loads(line)["doc"] for line in asked.body.splitlines()[1::2]]
        if unknown := sorted(document.keys() - mapped.keys()):
            refused = {"error": {"type": "strict_dynamic_mapping_exception", "reason": STRICT.format(unknown[0])}}
            return bulk([item(key, 400, **refused) for key in asked.ids], errors=True)
        stored.append(document)
        return good(asked)

    is_there: list[bool] = []
    document = {"status": 200, "headers": "{}", "body": "text", "description": None, "spider": "s"}
    [verdict] = write_to(answer, [Record("a", document, 600)])
    assert verdict.answer is (Answer.ACKNOWLEDGED if may_change else Answer.REJECTED)
    assert stored == ([document] if may_change else [])


def test_warnings_of_the_server_are_not_printed(recwarn: pytest.WarningsRecorder) -> None:
    """Each with words of its own would be kept for ever, and be a line on stderr."""
    write_to(lambda asked: said(good(asked).partition(b"\r\n\r\n")[2], more=b'Warning: 299 x "\x1b[2J"\r\n'))
    assert not recwarn.list


def test_a_host_that_is_away_is_one_line_and_not_a_traceback_at_each_request(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_retries", LogLimit(1, 600.0))
    with answering(good) as address:
        settings = settings_for(f"http://127.0.0.1:9,http://127.0.0.1:1,{address}")
        with closing(ElasticsearchOptions.from_settings(settings).client(BoundedNode)) as asking:
            for _ in range(8):
                asking.cluster.health()
    [told] = caplog.records
    assert "A host of SITE_ELASTICSEARCH_HOSTS fails" in told.getMessage()
    assert "Connection refused" in told.getMessage()
    assert not told.exc_info


# --- a reader, and documents that are not ours ----------------------------------------------------


CALLS: dict[str, Callable[[ElasticsearchResults], Any]] = {
    "_doc": lambda reader: reader.get("a"),
    "_refresh": lambda reader: reader.count(),
    "_count": lambda reader: reader.count(),
    "_pit": lambda reader: list(reader.search()),
    "_search": lambda reader: list(reader.search()),
}


@contextmanager
def reading(answer: Callable[[Asked], Said]) -> Iterator[ElasticsearchResults]:
    with answering(answer) as address, closing(ElasticsearchResults.from_settings(settings_for(address))) as reader:
        yield reader


@pytest.mark.parametrize("where", CALLS)
def test_a_reader_says_what_it_was_answered(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, no traceback, whatever came."""
    monkeypatch.setattr("site_spider.adapters.elasticsearch.client.PageNode.most_bytes", 8_000_000)
    answer: Said = b""

    def answered(asked: Asked) -> Said:
        if where in asked.path:
            return answer
        return said({"id": "point", "count": 1, "hits": {"hits": []}})

    with reading(answered) as reader:
        for name in ODD:
            answer = odd(name)
            said_so = complaint(partial(CALLS[where], reader))
            assert said_so or where == "_refresh", name  # which says nothing that counts
            assert said_so.isprintable(), name
            assert len(said_so) < 1000, name


@pytest.mark.parametrize("pause_seconds", [0, 100])
def test_a_reader_halves_a_page_that_is_too_large(pause_seconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 100 bodies of megabytes each; or too large for the time of a request."""
    if not pause_seconds:
        monkeypatch.setattr("site_spider.adapters.elasticsearch.client.PageNode.most_bytes", 100_000)
    sizes, pauses = list[int](), list[int]()
    monkeypatch.setattr("site_spider.runtime.monotonic", lambda: time.monotonic() + sum(pauses))

    def slowly(whole: bytes) -> Iterator[bytes]:
        for at in range(0, len(whole), 10_000):
            pauses.append(pause_seconds if len(whole) > 100_000 else 0)
            yield whole[at : at + 10_000]

    def answer(asked: Asked) -> Said:
        if "_search" not in asked.path:
            return said({"id": "point"})
        size = json.loads(asked.body)["size"]
        sizes.append(size)
        hits = [{"_id": str(n), "_source": {"body": "x" * 10_000}, "sort": [n]} for n in range(size)]
        return slowly(said({"hits": {"hits": hits}}))

    with reading(answer) as reader:
        assert len(list(reader.search(limit=30))) == 30
    assert max(sizes) == 30
    assert sizes[-1] <= 7


def test_documents_that_are_not_ours_are_shown() -> None:
    """Without a source, or with one that is null, as an index with other mappings has them."""
    hits = [{"_id": "a", "sort": [1]}, {"_id": "b", "_source": None, "sort": [2]}]
    pages = [{"hits": {"hits": []}}, {"hits": {"hits": hits}}]

    def answer(asked: Asked) -> Said:
        return said(pages.pop() if "_search" in asked.path else {"id": "point"})

    with reading(answer) as reader:
        assert list(reader.search()) == [{"url_id": "a"}, {"url_id": "b"}]


@pytest.mark.parametrize("times", [1, 2])
def test_a_new_index_is_waited_for(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shard comes a moment after it; of an index whose shard is away nothing is said to be missing."""
    away = {"docs": [{"_id": "a", "error": {"type": "no_shard_available_action_exception", "reason": "no shard"}}]}
    monkeypatch.setattr("site_spider.adapters.elasticsearch.client.SHARD_SECONDS", 0.01)
    answers = [{"docs": [{"_id": "a", "found": False}]}, *([away] * times)]
    with reading(lambda _: said(answers.pop())) as reader:
        assert ("no_shard" in complaint(partial(reader.known, ["a"], ["url"]))) is (times == 2)


def test_an_error_of_a_document_may_have_any_type() -> None:
    """It was a TypeError, with which the command ended."""
    error = {"type": ["x"], "reason": {}}
    with reading(lambda _: said({"docs": [{"_id": "a", "error": error}]})) as reader:
        assert "could not be read" in complaint(partial(reader.known, ["a"], ["url"]))


@pytest.mark.parametrize(
    ("doc", "item"),
    [
        ({"_id": "a"}, {}),
        ({"_id": "a", "_source": {}}, {}),
        ({"_id": "a", "_source": {}, "_seq_no": "x", "_primary_term": 1}, {}),
        ({"_id": "a", "_source": {}, "_seq_no": 1, "_primary_term": 1}, {"_id": "a"}),
        ({"_id": "a", "_source": {}, "_seq_no": 1, "_primary_term": 1}, {"status": 200}),
    ],
)
def test_a_claim_that_nobody_confirms_is_an_outage(doc: dict[str, Any], item: dict[str, Any]) -> None:
    """It was a KeyError, with which `scrapy recrawl` ended."""

    def answer(asked: Asked) -> Said:
        return bulk([{"update": item}]) if "_bulk" in asked.path else said({"docs": [{**doc, "found": True}]})

    with reading(answer) as reader:
        assert "the answer has no" in complaint(partial(reader.exchange, "x", {"a": (None, "1")}))


def test_a_document_that_the_server_does_not_change_holds_no_other_up(caplog: pytest.LogCaptureFixture) -> None:
    """It ended each round of `scrapy recrawl` where it stood, and no page behind it was checked any more."""
    docs = [{"_id": key, "found": True, "_source": {}, "_seq_no": 1, "_primary_term": 1} for key in "ab"]
    odd_one = item("a", 400, error={"type": "document_parsing_exception", "reason": "[price] is no number"})

    def answer(asked: Asked) -> Said:
        return bulk([odd_one, item("b")], errors=True) if "_bulk" in asked.path else said({"docs": docs})

    with reading(answer) as reader:
        assert reader.exchange("x", {"a": (None, "1"), "b": (None, "1")}) == {"b"}
    assert "Document a of " in caplog.text
    assert "price" in caplog.text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"type": "document_parsing_exception", "reason": "[1:9] failed to parse field [x] of type [long]"}, "long"),
        ({"type": "mapper_parsing_exception", "reason": "failed to parse field [x] of type [long]"}, "long"),
        ({"type": ["document_parsing_exception"], "reason": {}}, "document_parsing"),
    ],
)
def test_where_no_document_takes_a_claim_it_is_said_once(error: dict[str, Any], words: str) -> None:
    """The field is of another type there: each document would be tried, and warned of, for itself."""
    doc = {"_id": "a", "found": True, "_source": {}, "_seq_no": 1, "_primary_term": 1}

    def answer(asked: Asked) -> Said:
        return bulk([item("a", 400, error=error)]) if "_bulk" in asked.path else said({"docs": [doc]})

    with reading(answer) as reader:
        assert words in complaint(partial(reader.exchange, "x", {"a": (None, "1")}))


def test_a_search_asks_for_all_shards() -> None:
    """Else one that is away has no documents, and nothing says so."""
    asked_for: list[str] = []

    def answer(asked: Asked) -> Said:
        asked_for.append(asked.path)
        return said({"id": "point", "hits": {"hits": []}})

    with reading(answer) as reader:
        assert list(reader.search()) == []
    (search,) = [path for path in asked_for if "_search" in path]
    assert "allow_partial_search_results=false" in search
