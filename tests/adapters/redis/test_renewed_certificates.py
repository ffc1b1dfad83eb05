"""Certificates of Redis that are replaced on disk: each new connection reads the files."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from site_spider.adapters.redis.stores import client_of
from tests.adapters.redis.test_odd import answering
from tests.authority import Authority, TlsFront


def test_a_client_takes_a_new_authority_and_a_new_certificate_of_its_own(tmp_path: Path) -> None:
    before, after = Authority(tmp_path / "before", "before"), Authority(tmp_path / "after", "after")
    files = tmp_path / "client"
    before.give_to_client(files)
    options = f"ssl_ca_certs={files}/ca.pem&ssl_certfile={files}/client.pem&ssl_keyfile={files}/client.key"
    with answering(b"+OK\r\n") as address, TlsFront(urlsplit(address).port or 0, before) as front:
        url = f"rediss://127.0.0.1:{front.port}/0?{options}"
        with client_of(url, address) as client:
            assert client.ping()
            after.give_to_client(files)
            front.use(after)
            assert client.ping()
