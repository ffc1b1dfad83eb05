"""No way leads a crawl to a private address: the real engine and handler, connections counted."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.download.handler_trials import said_by
from tests.download.resolver_trials import PRIVATE, PUBLIC, Names, Sites, make_public, redirect
from tests.in_process.engine import Crawled, crawl

PLAIN = "site_spider.download.handler.PlainDownloadHandler"
AIMS = [
    "http://127.0.0.1:PORT/", "http://0x7f000001:PORT/", "http://2130706433:PORT/", "http://127.1:PORT/",
    "http://0177.0.0.1:PORT/", "http://[::ffff:127.0.0.1]:PORT/", "http://[::ffff:7f00:1]:PORT/",
    "http://[64:ff9b:1::7f00:1]:PORT/", "http://[::ffff:0:7f00:1]:PORT/", "http://localhost:PORT/",
    "http://LOCALHOST.:PORT/", "http://169.254.169.254/latest/", "http://168.63.129.16/", "http://192.0.0.192/",
    "http://metadata.google.internal/", "http://private.test:PORT/", "//private.test:PORT/x",
]  # fmt: skip
NAMES = {
    "public.test": lambda _: [PUBLIC],
    "private.test": lambda _: [PRIVATE],
    "mixed.test": lambda _: [PRIVATE, PUBLIC, "10.0.0.1"],
}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    make_public(monkeypatch.setattr)
    made = Names(dict(NAMES))
    monkeypatch.setattr(socket, "getaddrinfo", made)
    return made


def crawled(folder: Path, answers: dict[str, bytes], urls: list[str], **settings: Any) -> tuple[Crawled, list[str]]:
    """What a crawl over the network left behind, and the addresses that were connected to."""
    usual = {"DOWNLOAD_HANDLERS": {"http": PLAIN, "https": PLAIN}, "DOWNLOAD_TIMEOUT": 300, "RETRY_TIMES": 0}
    with Sites(answers) as sites:
        seeds = [{"url": url.replace("PORT", str(sites.port))} for url in urls]
        return crawl(folder, seeds, **{**usual, **settings}), sites.reached


def reasons(found: Crawled) -> set[str]:
    return {str(document["description"]).partition(":")[0] for document in found.documents.values()}


def test_no_redirect_leads_to_a_private_address(tmp_path: Path, names: Names) -> None:
    answers = {f"public.test/{number}": redirect(aim) for number, aim in enumerate(AIMS)}
    urls = [f"http://public.test:PORT/{number}" for number in range(len(AIMS))]
    found, reached = crawled(tmp_path, answers, urls)
    assert set(reached) == {PUBLIC}
    assert len(found.documents) == len(AIMS)
    assert reasons(found) <= {"PrivateHostError", "DNSLookupError"}


def test_no_robots_txt_is_fetched_from_a_private_address(tmp_path: Path, names: Names) -> None:
    answers = {
        "public.test/robots.txt": redirect("http://127.0.0.1:PORT/robots.txt"),
        "mixed.test/robots.txt": redirect("http://169.254.169.254/robots.txt"),
    }
    urls = ["http://public.test:PORT/", "http://mixed.test:PORT/"]
    found, reached = crawled(tmp_path, answers, urls, ROBOTSTXT_OBEY=True, SITE_ROBOTS_WAIT_SECONDS=0.1)
    assert set(reached) == {PUBLIC}
    assert len(found.documents) == 2


NO_ADDRESS = {"plain": "PrivateHostError", "stock": "CannotResolveHostError"}  # stock: behind TWISTED_DNS_RESOLVER


@pytest.fixture(scope="module")
def trials() -> dict[str, Any]:
    """The same by Scrapy's handler: a process of its own, because a reactor cannot be started twice."""
    found, stderr = said_by("resolver_trials")
    assert "Unhandled" not in stderr
    return dict(found)


@pytest.mark.parametrize("handler", ["stock", "plain"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_name_that_turns_private_is_refused_by_both_handlers(
    handler: str, scheme: str, trials: dict[str, Any]
) -> None:
    """After the cache has forgotten it, with and without TLS; before, the first address is kept to."""
    found = trials[f"{handler} {scheme} turns"]
    assert found["reached"] == [PUBLIC, PUBLIC]
    assert found["errors"][2:] == [NO_ADDRESS[handler]] * 2


@pytest.mark.parametrize("handler", ["stock", "plain"])
def test_no_spelling_of_a_private_address_is_reached(handler: str, trials: dict[str, Any]) -> None:
    """Where sockets are made, or with TWISTED_DNS_RESOLVER before that."""
    found = trials[f"{handler} spelled"]
    assert [one["reached"] for one in found] == [[]] * 20
    assert {kind for one in found for kind in one["errors"]} <= {NO_ADDRESS[handler], "CannotResolveHostError"}


@pytest.mark.parametrize("handler", ["stock", "plain"])
def test_both_handlers_take_the_public_ones_of_many_addresses(handler: str, trials: dict[str, Any]) -> None:
    assert trials[f"{handler} http mixed"] == {"reached": [PUBLIC], "errors": [None]}
    assert set(trials[f"{handler} http many"]["reached"]) == {PUBLIC}
    assert trials[f"{handler} http many-private"] == {"reached": [], "errors": [NO_ADDRESS[handler]]}


@pytest.mark.parametrize("handler", ["stock", "plain"])
@pytest.mark.parametrize("name", ["empty label", "long label", "long name", "nobody"])
def test_a_name_that_cannot_be_asked_for_fails_at_once(handler: str, name: str, trials: dict[str, Any]) -> None:
    """Twisted's resolver never answered, and each attempt took the whole of DOWNLOAD_TIMEOUT."""
    assert trials[f"{handler} {name}"] == ["CannotResolveHostError"]


def test_names_of_metadata_are_not_looked_up(trials: dict[str, Any]) -> None:
    assert trials["metadata"] == ["PrivateHostError", "PrivateHostError"]
