"""Seeds: what a message and each of its fields may hold and mean, and that nothing but SeedError comes of all else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from site_spider.errors import SeedError
from site_spider.page.url import url_id
from site_spider.seed.fields import FORBIDDEN_META
from site_spider.seed.seed import Seed, parse_seed
from tests.seed.seed_messages import URL, assert_plain, message, parsed, reason_of
from tools.schemas import seed_schema


def test_every_field_comes_out_as_it_went_in():
    seed = parsed(
        meta={
            "url_id": "id-1", "NotExtract": True, "task_id": "job", "depth": 2, "parent_url_id": "p",
            "seed_url_id": "s", "dont_redirect": True, "download_timeout": 2.5, "max_retry_times": 0,
            "shop": {"id": [1, None, 2.5, "x\x00"]},
        },
        method="post",
        _encoding="latin-1",
        headers={"Accept": "text/html", "X-Many": ["1", "2"], "X-Name": "Müller"},
        cookies={"a": "1", "b": 2, "c": True},
        body="ü",
        priority=-5,
        dont_filter=True,
        callback="parse",
    )  # fmt: skip
    assert seed == Seed(
        url=URL,
        url_id="id-1",
        method="POST",
        encoding="latin-1",
        headers=(("Accept", "text/html"), ("X-Many", "1"), ("X-Many", "2"), ("X-Name", "Müller")),
        cookies={"a": "1", "b": "2", "c": "True"},
        body=b"\xfc",
        priority=-5,
        dont_filter=True,
        callback="parse",
        not_extract=True,
        task_id="job",
        depth=2,
        parent_url_id="p",
        seed_url_id="s",
        directives={"dont_redirect": True, "download_timeout": 2.5, "max_retry_times": 0},
        extra_json=b'{"shop":{"id":[1,null,2.5,"x\\u0000"]}}',
        unknown_fields=(),
    )


def test_a_request_as_scrapy_serialises_it_is_a_seed():
    """Fields that Request.to_dict() adds are accepted when null or empty."""
    seed = parsed(
        callback=None, errback=None, headers={}, method="GET", body="", cookies={}, meta={}, encoding="utf-8",
        _encoding="utf-8", priority=0, dont_filter=False, flags=[], cb_kwargs={}, _class=None,
    )  # fmt: skip
    assert seed.body == b""
    assert seed.callback is None
    assert seed.unknown_fields == ("encoding",)


def test_null_means_absent():
    """Producers that serialise objects write null for what is not set."""
    names = ["meta", "method", "_encoding", "headers", "cookies", "body", "priority", "dont_filter", "callback"]
    assert parsed(**dict.fromkeys(names)) == parsed()
    assert parsed().extra_json == b""
    keys = ["url_id", "NotExtract", "task_id", "depth", "parent_url_id", "seed_url_id", "dont_retry"]
    assert parsed(meta=dict.fromkeys(keys)) == parsed()


def test_extra_fields_of_meta_are_kept():
    """Scrapy's bookkeeping among them, which is data here and takes no effect."""
    extra = {
        "retry_times": 9, "redirect_times": 1, "redirect_ttl": 3, "redirect_urls": ["http://x/"],
        "redirect_reasons": [302], "download_latency": 0.5, "handle_httpstatus_all": True, "": None,
    }  # fmt: skip
    seed = parsed(meta=extra | {"depth": 1})
    assert seed.extra == extra
    assert seed.directives == {}


def test_the_url_of_a_seed_is_checked_and_normalised():
    seed = parse_seed('{"url": "HTTP://BÜCHER.example/ü?b=2&a=1"}'.encode())
    assert seed.url == "http://xn--bcher-kva.example/ü?b=2&a=1"
    assert seed.url_id == url_id("http://bücher.example/ü?a=1&b=2")


WRONG_META = {  # field: what it is, and what the reason says of it
    "url_id": [
        *(("", "empty"), (True, "true"), (1.5, "1.5"), (["a"], "a list"), ("a" * 513, "longer than 512 bytes")),
        *(("\u00fc" * 257, "longer than 512 bytes"), ("a\nb", "'a\\nb' holds a control character")),
    ],
    "NotExtract": [
        *((word, f"{word!a}, but must be true or false") for word in (1, " true", "yes", "1", "tru", "", "trüe"))
    ],
    "task_id": [({}, "an object"), ("a" * 513, "longer than 512 bytes")],
    "depth": [(-1, "-1"), (10_001, "10001"), ("1", "'1'"), (False, "false")],
    "seed_url_id": [({}, "an object")],
    "parent_url_id": [(False, "false")],
    "dont_redirect": [(1, "1")],
    "dont_retry": [("no", "'no'")],
    "dont_merge_cookies": [(0, "0")],
    "max_retry_times": [(101, "101"), (-1, "-1")],
    "download_timeout": [(0, "0"), (3601, "3601"), (True, "true"), ("9", "'9'")],
}


@pytest.mark.parametrize(
    ("meta", "why"),
    [({name: value}, f"meta.{name}: {why}") for name, some in WRONG_META.items() for value, why in some],
)
def test_a_meta_key_with_a_wrong_value_makes_a_dead_letter(meta, why):
    assert why in reason_of(message(meta=meta))


@pytest.mark.parametrize(
    "key",
    [
        "proxy", "bindaddress", "download_slot", "download_maxsize", "http_user", "http_pass",
        "dont_obey_robotstxt", "allow_offsite", "cookiejar", "_auth_proxy", "_", "site_epoch",
    ],
)  # fmt: skip
def test_a_forbidden_meta_key_makes_a_dead_letter(key):
    for value in ("x", None):
        assert f"meta: key '{key}' is not allowed" in reason_of(message(meta={key: value}))


def trees(leaf: st.SearchStrategy[Any], names: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """JSON of these."""
    more = lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)  # noqa: E731
    return st.recursive(leaf, more, max_leaves=8)


SIMPLE = st.none() | st.booleans() | st.integers()
JSON = trees(SIMPLE | st.floats() | st.text(st.characters()), st.text(max_size=5))
ENCODING_NAMES = st.sampled_from(["utf-8", "latin-1", "gbk", "utf-16", "hex", "rot13", "x\x00"]) | st.text(max_size=8)
SEED_LIKE = st.fixed_dictionaries(
    {"url": st.just(URL) | st.text(max_size=20).map("http://a/".__add__) | JSON},
    optional={
        "meta": st.dictionaries(
            st.sampled_from(["url_id", "NotExtract", "task_id", "depth", "dont_retry", "download_timeout", "x"]), JSON
        )
        | JSON,
        "method": st.sampled_from(["GET", "post"]) | JSON,
        "_encoding": ENCODING_NAMES | JSON,
        "headers": st.dictionaries(st.text(max_size=5), st.text(max_size=5) | JSON, max_size=3) | JSON,
        "cookies": st.lists(st.dictionaries(st.sampled_from(["name", "value", "path", "secure"]), JSON)) | JSON,
        "body": st.text(max_size=9) | JSON,
        "priority": JSON,
        "dont_filter": JSON,
        "callback": JSON,
        "flags": JSON,
    },
)


def damaged(message: bytes, at: int, instead: bytes) -> bytes:
    return message[:at] + instead + message[at + 1 :] if instead else message[:at]


MESSAGES = (JSON | SEED_LIKE).map(lambda value: json.dumps(value).encode())


@given(st.binary() | MESSAGES | st.builds(damaged, MESSAGES, st.integers(0, 200), st.binary(max_size=2)))
def test_whatever_a_message_holds_it_is_a_seed_or_has_a_plain_reason(value):
    """Arbitrary bytes, arbitrary values under the names of real fields, and messages that were cut or changed."""
    try:
        parse_seed(value)
    except SeedError as error:
        assert_plain(error.reason)


PLAIN_TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)
FINITE_JSON = trees(SIMPLE | st.floats(allow_nan=False, allow_infinity=False) | PLAIN_TEXT, PLAIN_TEXT)


@given(
    path=st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), max_size=20),
    url_ids=PLAIN_TEXT,
    extra=st.dictionaries(PLAIN_TEXT.map("x".__add__), FINITE_JSON, max_size=3),
    body=st.none() | PLAIN_TEXT,
    priority=st.integers(-1_000_000, 1_000_000),
)
def test_a_valid_seed_comes_out_unchanged(path, url_ids, extra, body, priority):
    url = f"http://example.com/{path}"
    seed = parsed(url=url, meta={"url_id": url_ids, **extra}, body=body, priority=priority)
    assert (seed.url, seed.url_id, seed.extra, seed.priority) == (url, url_ids, extra, priority)
    assert seed.body == (None if body is None else body.encode())


# --- fields of meta beside the URL -----------------------------------------------------------------------

BESIDE: dict[str, Any] = {"task_id": "spring", "url_id": "42", "NotExtract": True, "depth": 2}


def test_they_mean_what_they_mean_in_meta():
    assert parsed(**BESIDE) == parsed(meta=BESIDE)
    assert parsed(**BESIDE, zeta=1, alpha={"x": 1}).unknown_fields == ("zeta", "alpha")


@pytest.mark.parametrize("name", BESIDE)
def test_null_in_one_place_leaves_the_other(name):
    assert parsed(**{name: None}, meta=BESIDE) == parsed(meta=BESIDE)
    assert parsed(**BESIDE, meta={name: None}) == parsed(meta=BESIDE)
    assert parsed(**{name: None}) == parsed()


@pytest.mark.parametrize(
    ("name", "beside", "inside"),
    [
        ("url_id", 42, "42"),
        ("url_id", 42.0, "42"),
        ("task_id", "7", 7),
        ("NotExtract", "true", True),
        ("NotExtract", False, "False"),
        ("depth", 2.0, 2),
        ("task_id", "", ""),
    ],
)
def test_the_same_in_both_places_is_no_contradiction(name, beside, inside):
    assert parsed(**{name: beside}, meta={name: inside}) == parsed(meta={name: inside})


@pytest.mark.parametrize(
    ("name", "beside", "inside"),
    [("url_id", "1", "2"), ("task_id", "a", "b"), ("NotExtract", False, True), ("depth", 0, 1)],
)
def test_a_contradiction_is_refused_and_both_are_shown(name, beside, inside):
    reason = reason_of(message(**{name: beside}, meta={name: inside}))
    assert reason.startswith(f"{name}: ")
    assert f"meta.{name} is " in reason


def test_a_bad_value_beside_a_good_one_is_refused():
    assert reason_of(message(depth=True, meta={"depth": 1})).startswith("depth: true")


# --- the schema of seeds ---------------------------------------------------------------------------------

CHECK = Draft202012Validator(seed_schema())

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-2_000_000, 2_000_000), st.sampled_from([0.5, -1.5, 4000.5, 7.0, -0.0]),
    st.text(st.sampled_from("aZ9 ;=\t\n\x00\x7f\x85é-"), max_size=6), st.just([]),
    st.just({}), st.just(["a"]),
    st.just({"a": "b"}), st.just([{"name": "n", "value": 1}]), st.just([{"name": "n"}]), st.just([None]),
)  # fmt: skip
WORDS = ["true", "False", "get", "POST", "TRACE", "parse", "other", "utf-8", "", "x" * 512, "x" * 513]
VALUES = ANYTHING | st.sampled_from(WORDS)
URLS = st.sampled_from([
    "http://h.test/", "HTTPS://h.test", "http://h.test?q", "ftp://h.test/", "http://", "http:///p", "h.test",
    "http://u@h.test/", "http://h.test/ a", "http://h.test/\t", "http://h.test\\p", "http://h.test/\n",
    "http://h.test/" + "x" * 8_200, "http://h.test/é",
])  # fmt: skip
META = [
    "url_id", "task_id", "NotExtract", "depth", "parent_url_id", "seed_url_id", "dont_redirect", "dont_retry",
    "max_retry_times", "download_timeout", "if_changed", "etag", "anything", "_x", "site_x", "site_job",
    *sorted(FORBIDDEN_META),
]  # fmt: skip
FIELDS = [
    "method", "body", "priority", "dont_filter", "callback", "errback", "cb_kwargs", "flags", "_class",
    "other", "headers", "cookies",
]  # fmt: skip
HEADERS = st.dictionaries(
    st.sampled_from(["A", "x-b", "Host", "HOST", "te", "tes", "bad name", "", "Cookie", "a\n"]), VALUES, max_size=2
)


def parses(seed: Any) -> bool:
    """Which callbacks there are, only the spider knows."""
    try:
        parse_seed(json.dumps(seed).encode(), callbacks=None)
    except SeedError:
        return False
    return True


@given(
    URLS | VALUES,
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=2),
    st.none() | st.dictionaries(st.sampled_from(META), VALUES, max_size=2),
    st.none() | HEADERS,
)
def test_schema_and_parser_agree(url: Any, fields: Any, meta: Any, headers: Any) -> None:
    seed = {"url": url, "headers": headers, **fields, "meta": meta}
    assert CHECK.is_valid(seed) == parses(seed), seed


@given(st.sampled_from(["task_id", "url_id", "NotExtract", "depth"]), VALUES)
def test_they_agree_on_fields_beside_the_url(name: str, value: Any) -> None:
    seed = {"url": "http://h.test/", name: value}
    assert CHECK.is_valid(seed) == parses(seed)


def test_the_schema_knows_callbacks_of_any_spider() -> None:
    assert all(CHECK.is_valid({"url": "http://h.test/", "callback": name}) for name in ("parse_article", "größe"))
    assert not CHECK.is_valid({"url": "http://h.test/", "callback": "os.system"})


@pytest.mark.parametrize(
    "more",
    [
        {"task_id": "a\n"},
        {"meta": {"url_id": "a\n"}},
        {"headers": {"X-A": "a\n"}},
        {"method": "GET\n"},
        {"callback": "a\n"},
    ],
)
def test_a_line_feed_at_the_end_is_refused_by_both(more: dict[str, Any]) -> None:
    seed = {"url": "http://h.test/", **more}
    assert not CHECK.is_valid(seed)
    assert not parses(seed)


# --- the single fields of a seed: which values are accepted, and the reason that refuses all others ------


@pytest.mark.parametrize(
    "encoding",
    [
        "utf-8", "UTF8", "utf_8", "latin-1", "ISO-8859-1", "cp1252", "windows-1251", "gbk", "gb18030", "Shift_JIS",
        "koi8-u",
    ],
)  # fmt: skip
def test_text_encodings_that_contain_ascii_are_accepted(encoding):
    seed = parsed(_encoding=encoding, body="a")
    assert seed.encoding.lower() == encoding.lower()
    assert seed.body == b"a"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "head"])
def test_known_methods_are_accepted_in_any_case(method):
    assert parsed(method=method).method == method.upper()


def test_the_longer_form_of_cookies_keeps_what_scrapy_uses():
    """Keys that have no effect in Scrapy either, as browsers export them, are left out."""
    kept = {"name": "a", "path": "/x", "domain": "example.com", "secure": True}
    cookie = {**kept, "value": 1, "expires": 1, "httpOnly": 1}
    assert parsed(cookies=[cookie, {"name": "b", "value": "", "path": None}]).cookies == [
        {**kept, "value": "1"},
        {"name": "b", "value": ""},
    ]


NO_TEXT_ENCODINGS = [
    "hex", "rot13", "zlib", "base64", "idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs",
    "utf-16", "cp037", "utf-7", "../../evil",
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"url": None}, "url: null, but must be a string"),
        ({"meta": []}, "meta: a list, but must be an object"),
        ({"meta": "x"}, "meta: 'x', but must be an object"),
        ({"method": 1}, "method: 1 is not allowed"),
        ({"method": ""}, "method: '' is not allowed"),
        ({"method": "BREW"}, "method: 'BREW' is not allowed; use one of DELETE, GET"),
        ({"method": "CONNECT"}, "method: 'CONNECT'"),
        ({"method": "TRACE"}, "method: 'TRACE'"),
        ({"method": "GET / HTTP/1.1\r\nX: y"}, "method: 'GET / HTTP/1.1\\r\\nX: y'"),
        ({"method": "opt\u0131ons"}, "method: 'opt\\u0131ons'"),
        ({"method": ["GET"]}, "method: a list"),
        ({"_encoding": 8}, "_encoding: 8, but must be a string"),
        ({"_encoding": ""}, "_encoding: '' is not a known text encoding"),
        ({"_encoding": "klingon"}, "_encoding: 'klingon' is not a known text encoding"),
        *(({"_encoding": name}, f"_encoding: {name!r}") for name in NO_TEXT_ENCODINGS),
        ({"_encoding": "\u0000"}, "_encoding: '\\x00'"),
        ({"_encoding": "\u00fctf-8"}, "_encoding: '\\xfctf-8'"),
        ({"_encoding": "x" * 9999}, "_encoding: 'xxx"),
        ({"body": {}}, "body: an object, but must be a string or null"),
        ({"body": 5}, "body: 5"),
        ({"body": False}, "body: false"),
        ({"body": "abc\u20ac", "_encoding": "latin-1"}, "body: '\\u20ac' at character 4 does not fit latin-1"),
        ({"body": "\u00fc", "_encoding": "ascii"}, "does not fit ascii"),
        ({"priority": "1"}, "priority: '1', but must be a whole number"),
        ({"url_id": 9007199254740993.0}, "url_id: 9007199254740992.0"),  # two ids would be one
        ({"priority": 1.5}, "priority: 1.5"),
        ({"priority": True}, "priority: true"),
        ({"priority": 1_000_001}, "from -1000000 to 1000000"),
        ({"priority": -(10**30)}, "from -1000000 to 1000000"),
        ({"dont_filter": 1}, "dont_filter: 1, but must be true or false"),
        ({"dont_filter": "true"}, "dont_filter: 'true'"),
        ({"callback": "start"}, "callback: 'start' is not allowed"),
        ({"callback": ["parse"]}, "callback: a list"),
        ({"errback": "parse"}, "errback: 'parse' is not allowed in a seed"),
        ({"cb_kwargs": {"a": 1}}, "cb_kwargs: an object"),
        ({"flags": ["a"]}, "flags: a list"),
        ({"_class": "os.system"}, "_class: 'os.system' is not allowed in a seed; leave it out"),
        ({"_meta": 0}, "_meta: 0"),
        ({"_\u0007\u2028": 1}, "_\\x07\\u2028: 1"),
    ],
)
def test_a_field_with_a_wrong_value_makes_a_dead_letter(fields, why):
    assert why in reason_of(message(**fields))


@pytest.mark.parametrize(
    "name",
    [
        "Host", "host", "PROXY-authorization", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade",
        "TE", "Trailer", "Keep-Alive", "Proxy-Connection",
    ],
)  # fmt: skip
def test_a_forbidden_header_makes_a_dead_letter(name):
    assert f"headers: '{name}' is not allowed" in reason_of(message(headers={name: "x"}))


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (["a"], "headers: a list, but must be an object"),
        ("", "headers: a string, but must be an object"),
        ({"": "x"}, "headers: '' is not a header name"),
        ({"a b": "x"}, "headers: 'a b' is not a header name"),
        ({"a:": "x"}, "is not a header name"),
        ({"a\r\nHost": "x"}, "headers: 'a\\r\\nHost' is not a header name"),
        ({"\u00fc": "x"}, "is not a header name"),
        ({"Host\u0000": "x"}, "is not a header name"),
        ({"a": 1}, "headers.a: a number, but must be a string or a list"),
        ({"a": None}, "headers.a: null"),
        ({"a": ["x", 1]}, "headers.a: a number"),
        ({"a": {"b": "c"}}, "headers.a: an object"),
        ({"a": "x\r\nHost: b"}, "headers.a: the value holds a control character"),
        ({"a": ["x", "y\n"]}, "holds a control character"),
        ({"a": "\x00"}, "holds a control character"),
        ({"a": "\x7f"}, "holds a control character"),
        ({"a": "x" * 65536}, "headers: more than 65536 bytes"),
        ({"a": "\u00fc" * 40000}, "headers: 80001 bytes, but must be at most 65536"),
        ({f"h{i}": "x" * 100 for i in range(1000)}, "headers: more than 65536 bytes"),
    ],
)
def test_headers_that_would_corrupt_a_request_make_a_dead_letter(headers, why):
    assert why in reason_of(message(headers=headers))


@pytest.mark.parametrize(
    ("encoding", "text", "why"),
    [("ascii", "\u00fc", "does not fit ascii"), ("iso2022_jp", "\u3042", "holds a control character")],
)
def test_headers_must_fit_the_encoding(encoding, text, why):
    """Scrapy encodes them with it."""
    assert why in reason_of(message(headers={"X-Name": text}, _encoding=encoding))


@pytest.mark.parametrize(
    ("cookies", "why"),
    [
        ("a=b", "cookies: a string, but must be an object or a list"),
        (0, "cookies: a number"),
        ({"a": None}, "cookies.a: null"),
        ({"a": ["x"]}, "cookies.a: a list"),
        ({"a": "x; Domain=com"}, "cookies.a: the text holds a semicolon"),
        ({"a": "x\r\nSet-Cookie: b"}, "control character"),
        ({"": "x"}, "cookies: a name is empty"),
        ({"a=b": "x"}, "cookies: a name is empty or holds an equals sign"),
        ({"a\n": "x"}, "cookies.name: the text holds"),
        (["a=b"], "cookies: a string, but must be an object"),
        ([{"value": "x"}], "cookies.name: null"),
        ([{"name": "a"}], "cookies.value: null"),
        ([{"name": "a", "value": "x", "path": "/;"}], "cookies.path: the text holds a semicolon"),
        ([{"name": "a", "value": "x", "domain": "\n"}], "cookies.domain"),
        ([{"name": "a", "value": "x", "secure": "yes"}], "cookies.secure: 'yes'"),
        ({"a": "x" * 65536}, "cookies: more than 65536 bytes"),
    ],
)
def test_cookies_that_would_say_something_else_make_a_dead_letter(cookies, why):
    """They become part of a header, where a semicolon begins an attribute."""
    assert why in reason_of(message(cookies=cookies))
