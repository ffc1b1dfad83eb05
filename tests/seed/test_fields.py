"""The single fields of a seed: which values are accepted, and the reason that refuses all others."""

import pytest

from tests.seed.seed_messages import message, parsed, reason_of


@pytest.mark.parametrize(
    "encoding",
    [
        "utf-8", "UTF8", "utf_8", "latin-1", "ISO-8859-1", "cp1252", "windows-1251", "gbk", "gb18030", "Shift_JIS",
        "koi8-u",
    ],
)  # fmt: skip
def test_text_encodings_that_contain_ascii_are_accepted(encoding):
    """By any name that Python knows."""
    seed = parsed(_encoding=encoding, body="a")
    assert seed.encoding.lower() == encoding.lower()
    assert seed.body == b"a"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "head"])
def test_known_methods_are_accepted_in_any_case(method):
    """They come out in upper case."""
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
        ({"priority": 1.0}, "priority: 1.0"),
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
    """The reason names the field and shows the value."""
    assert why in reason_of(message(**fields))


@pytest.mark.parametrize(
    "name",
    [
        "Host", "host", "PROXY-authorization", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade",
        "TE", "Trailer", "Keep-Alive", "Proxy-Connection",
    ],
)  # fmt: skip
def test_a_forbidden_header_makes_a_dead_letter(name):
    """In any case of letters."""
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
    """Names are tokens, values text without line ends, all of it of a bounded size."""
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
