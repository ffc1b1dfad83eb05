"""Records of a WARC file: read back by warcio as they were made, whatever sites and seeds put into them."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator

from site_spider.adapters.warc.records import PackedRecord, WarcRecord, index_line, members, records_of, surt, warcinfo
from site_spider.contracts.sink import Exchange, Record

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
ASKED = b"GET / HTTP/1.1\r\nHost: h.test\r\n\r\n"
NASTY = st.text(st.sampled_from("\r\n\0:; \t€é\ud800\u2028WARC-Type"), max_size=30)
ANYTHING = NASTY | st.text(max_size=30)


def ids() -> Any:
    numbers = iter(range(1_000_000))
    return lambda: f"00000000-0000-4000-8000-{next(numbers):012}"


def made(record: Record) -> list[WarcRecord]:
    return records_of(record, 1_700_000_000.0, ids(), lambda _url, _digest: None)


def read(data: bytes) -> list[Any]:
    found = []
    for record in ArchiveIterator(io.BytesIO(data), check_digests="raise"):
        found.append((record.rec_type, dict(record.rec_headers.headers), record.raw_stream.read()))
    return found


LONG = "é \r\n" * 80_000
WIDE = LONG[:1_000]


@settings(deadline=None)
@example(WIDE, LONG, WIDE, LONG.encode(), b"", b"page", WIDE)
@given(
    key=ANYTHING,
    url=ANYTHING,
    address=st.none() | NASTY,
    value=st.binary(max_size=40),
    request=st.binary(max_size=60),
    body=st.binary(max_size=200),
    content_type=ANYTHING,
)
def test_nothing_that_a_site_or_seed_says_forges_a_record(
    key: str, url: str, address: str | None, value: bytes, request: bytes, body: bytes, content_type: str
) -> None:
    """Line ends, NUL, half characters, more than 1 MB of a header: the records that were made."""
    head = b"HTTP/1.1 200 OK\r\nX: " + value + b"\r\n\r\n"
    exchange = Exchange(url, ASKED + request, head, body, 1.5, address)
    record = Record(key, {"url": url, "content_type": content_type, "status": 200}, 1, exchanges=[exchange])
    whole = made(record) + made(Record(key, {"url": url, "content_type": content_type, "body": "x"}, 1))
    data = b"".join(one.packed() for one in whole)
    kinds = ["response", "request", "metadata", "resource", "metadata"]
    assert [member_kind(member) for member in members(io.BytesIO(data))] == kinds
    plain = gzip.decompress(data)
    for one in whole:
        block = b"".join(one.block)
        assert plain[: len(one.head) + len(block) + 4] == one.head + block + b"\r\n\r\n"
        plain = plain[len(one.head) + len(block) + 4 :]
        names = [line.split(b": ")[0] for line in one.head[:-4].split(b"\r\n")[1:]]
        assert names == [name.encode() for name in [*one.headers, "Content-Length"]]
    assert plain == b""


def member_kind(member: PackedRecord) -> str:
    return member.beginning.partition(b"WARC-Type: ")[2].partition(b"\r\n")[0].decode()


@settings(deadline=None)
@given(
    bodies=st.lists(st.binary(max_size=60) | st.just(b"\0" * 3_000_000), max_size=5),
    cut=st.integers(0, 2_000),
    trash=st.binary(max_size=20),
)
def test_the_whole_records_of_a_file_are_found_wherever_it_breaks_off(
    bodies: list[bytes], cut: int, trash: bytes
) -> None:
    packed = [made(Record("a", {"status": 1}, 1, exchanges=[of(body)]))[0].packed() for body in bodies]
    data = b"".join(packed)
    left = data[: max(0, len(data) - cut)]
    whole: list[tuple[int, int]] = []
    end = 0
    for one in packed:
        if end + len(one) <= len(left):
            whole.append((end, len(one)))
            end += len(one)
        else:
            break
    found = [(member.offset, member.length) for member in members(io.BytesIO(left))]
    assert found == whole
    if left == data and not trash.startswith(b"\x1f"):
        behind = [(member.offset, member.length) for member in members(io.BytesIO(data + trash))]
        assert behind == whole


def of(body: bytes, head: bytes = HEAD, **more: Any) -> Exchange:
    return Exchange("http://h.test/", ASKED, head, body, 1_700_000_000.25, "192.0.2.1", **more)


def test_a_result_is_its_exchanges_and_the_rest_of_its_document() -> None:
    """As they were on the wire, but for the name of the line about chunks; bodies are not there twice."""
    head = b"HTTP/1.1 301 Moved\r\nLocation: /\r\ntransfer-encoding: chunked\r\nX: \xff\r\n\r\n"
    document = {"url": "http://h.test/a", "final_url": "http://h.test/", "status": 200, "body": "long"}
    exchanges = [of(b"there", head), of(b"page", is_cut=True)]
    whole = made(Record("k", document, 1, exchanges=exchanges))
    found = read(b"".join(one.packed() for one in whole))
    assert [kind for kind, _, _ in found] == ["response", "request", "response", "request", "metadata"]
    (_, first, _), (_, asked, _), (_, last, payload), _, (_, metadata, rest) = found
    assert whole[0].block == (head.replace(b"transfer-encoding", b"X-Orig-Transfer-Encoding"), b"there")
    assert payload == b"page"
    assert asked["WARC-Concurrent-To"] == first["WARC-Record-ID"]
    assert first["WARC-Date"] == "2023-11-14T22:13:20.250000Z"
    assert first["WARC-IP-Address"] == "192.0.2.1"
    assert last["WARC-Truncated"] == "disconnect"
    assert metadata["WARC-Concurrent-To"] == last["WARC-Record-ID"]
    assert metadata["WARC-Target-URI"] == f"urn:metadata:{last['WARC-Target-URI']}"  # pywb replays the last
    del document["body"]
    assert json.loads(rest) == {"url_id": "k", **document}


def test_the_index_has_pages_only() -> None:
    info = warcinfo("a.warc.gz", {"software": "x\r\nforged: y"}, "2026-01-02T03:04:05Z", ids())
    assert b"software: x forged: y\r\n" in info.block[0]
    assert index_line(PackedRecord(0, 9, info.beginning), "a") is None
    whole = made(Record("k", {"status": 200}, 1, exchanges=[of(b"page")]))
    lines = [index_line(PackedRecord(5, 9, one.beginning), "a.warc.gz") for one in whole]
    assert lines[1:] == [None, None]
    key, stamp, fields = (lines[0] or b"").split(b" ", 2)
    assert (key, stamp) == (b"test,h)/", b"20231114221320")
    assert json.loads(fields) == {
        "url": "http://h.test/",
        "mime": "text/html",
        "status": "200",
        "digest": whole[0].headers["WARC-Payload-Digest"],
        "length": "9",
        "offset": "5",
        "filename": "a.warc.gz",
    }


KEYS = {
    "http://www.Example.com/Path?b=2&a=1": "com,example)/path?a=1&b=2",
    "https://example.com:443": "com,example)/",
    "http://example.com:80/": "com,example)/",
    "https://example.com:444/": "com,example:444)/",
    "http://192.0.2.1:81/": "1,2,0,192:81)/",
    "http://[::1]:8/": "::1:8)/",
    "urn:x-url-id:a": "urn:x-url-id:a",
    "http://example.com./dir/": "com,example)/dir",
    "http://example.com/?B=1&a=2&a-b&": "com,example)/?&a=2&a-b&b=1",
    "http://example.com/%7Ea%2Fb%2523%c3%A9%20c?d%26b=%2B": "com,example)/~a/b%23%c3%a9%20c?b=+&d",
    "http://example.com/../a//./b/c/../": "com,example)/../a/b",
    f"http://example.com/?a&PHPSESSID={'0A' * 16}&b": "com,example)/?a&b",
    "http://example.com/?CFID=1&CFTOKEN=2&a": "com,example)/?a",
    f"http://example.com/?jsessionid={'0A' * 16}&ASPSESSIONID{'A' * 8}={'B' * 24}": "com,example)/",
    f"http://example.com/(S({'a1' * 12}))/a.aspx": "com,example)/a.aspx",
}


@pytest.mark.parametrize(("url", "key"), [*KEYS.items(), ("http://[broken/", "http://[broken/")])
def test_keys_of_the_index(url: str, key: str) -> None:
    assert surt(url) == key


def test_a_page_that_is_what_it_was_is_a_visit_without_a_payload() -> None:
    head = b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n"
    exchange = Exchange("http://h.test/", ASKED, head, b"", 1.5)
    whole = made(Record("k", {"url": "http://h.test/", "unchanged": True}, 1, exchanges=[exchange]))
    (kind, headers, _), *others = read(b"".join(one.packed() for one in whole))
    assert [kind, *(other for other, *_ in others)] == ["revisit", "request", "metadata"]
    assert headers["WARC-Profile"].endswith("/server-not-modified")
    assert "WARC-Payload-Digest" not in headers
    assert "WARC-Refers-To" not in headers  # nothing is known of an answer with a body
    assert whole[0].block == (head,)
    assert index_line(PackedRecord(0, 9, whole[0].beginning), "a") is None
