"""What a result says of the answer."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from scrapy.http import Headers

from site_spider.spiders.page_text import headers_json

LINES = st.lists(st.tuples(st.binary(min_size=1), st.binary()))


@given(LINES)
def test_headers_are_spelled_as_python_spells_json(lines: list[tuple[bytes, bytes]]) -> None:
    """Whatever bytes a server sends; indices hold this text."""
    headers = Headers()
    for name, value in lines:
        headers.appendlist(name, value)
    read = {name.decode("latin-1"): [value.decode("latin-1") for value in values] for name, values in headers.items()}
    assert headers_json(headers) == json.dumps(read, ensure_ascii=False)
