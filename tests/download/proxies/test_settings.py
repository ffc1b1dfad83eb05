"""The settings of proxies, and their file while it changes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.settings import Settings

from site_spider.download.proxies import service as proxy_service
from site_spider.errors import ConfigError
from tests.download.proxies.network import ONE, TWO, WITH_CREDENTIALS, Network, _short_rests, network, run
from tests.in_process import engine
from tests.in_process.engine import page

__all__ = ["_short_rests", "network"]


# --- settings ---


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            {"SITE_PROXIES": "http://u:hush@host"},
            "SITE_PROXIES: number 1 is no proxy: host and port must be given",
        ),
        ({"SITE_PROXIES": "no/such/file"}, "SITE_PROXIES (no/such/file): it cannot be read: No such file"),
        ({"SITE_PROXY_STATUSES": "403,banned"}, "SITE_PROXY_STATUSES is 'banned'"),
        ({"SITE_PROXY_BODY_PATTERNS": "["}, "SITE_PROXY_BODY_PATTERNS: '[' is no regular expression"),
        ({"SITE_PROXY_BODY_PATTERNS": '["a"'}, "SITE_PROXY_BODY_PATTERNS must be a JSON array"),
        ({"SITE_PROXY_ATTEMPTS": "0"}, "SITE_PROXY_ATTEMPTS is '0'"),
        ({"SITE_PROXY_TIMEOUTS": "-1"}, "SITE_PROXY_TIMEOUTS is '-1'"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, overrides: dict[str, str], said: str) -> None:
    """Without what may be a password."""
    with pytest.raises(ConfigError) as refused:
        run(tmp_path, **overrides)
    assert str(refused.value).startswith(said)
    assert "hush" not in str(refused.value)


# --- the file ---


def test_a_file_is_read_again_when_it_has_changed(
    tmp_path: Path, network: Network, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is bad, or gone, the last good list stays, and that is said once for each state."""
    monkeypatch.setattr(proxy_service, "LOOK_SECONDS", 0.02)
    caplog.set_level(logging.INFO, "site_spider.download.proxies.service")
    file = tmp_path / "proxies"
    file.write_text(f"# ours\n{WITH_CREDENTIALS}\n")
    steps = iter([f"{TWO}\nhttp://operator:hush%3Ahush@", None, f"{TWO}\n"])
    state: list[str] = []

    async def slow(request: Request) -> Response:
        """The page is there when the file has been through all its states."""
        for content in steps:
            file.unlink() if content is None else file.write_text(content)
            before = len(caplog.records)
            while len(caplog.records) == before:
                await asyncio.sleep(0.01)
            state.append(caplog.records[-1].getMessage())
            await asyncio.sleep(0.2)
            assert len(caplog.records) == before + 1
        return page(request, "", 403)

    def answer(request: Request) -> Any:
        network.asked.append(("slow", request.meta.get("proxy")))
        return slow(request) if request.meta.get("proxy") is None else page(request)

    engine.ANSWERS["/slow"] = answer
    crawled = run(tmp_path / "data", "slow", SITE_PROXIES=str(file))
    assert crawled.documents["slow"]["status"] == 200
    assert network.ways("slow") == [None, TWO]
    what = f"SITE_PROXIES ({file})"
    assert state == [
        f"{what}: line 2 is no proxy: host and port must be given; the 1 proxies read before stay",
        f"{what}: it cannot be read: No such file or directory; the 1 proxies read before stay",
        f"{what}: 1 proxies from now on",
    ]


def test_a_file_that_is_being_written_is_not_read_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what has not changed between two looks counts: half a port is a port too."""
    path = tmp_path / "proxies"
    path.write_text(f"{ONE}\n")
    settings = Settings({"SITE_PROXIES": str(path)})
    settings.setmodule("site_spider.settings", priority="default")
    service = proxy_service.ProxyService(SimpleNamespace(settings=settings))  # type: ignore[arg-type]
    written = iter(["http://two.test:31", f"{TWO}\n", None, None])
    known: list[list[str]] = []

    async def sleep(_seconds: float) -> None:
        known.append([proxy.url for proxy in service.pool._order])
        if (content := next(written, "")) == "":
            raise asyncio.CancelledError
        if content is not None:
            path.write_text(content)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(service._follow(path))
    assert known == [[ONE], [ONE], [ONE], [TWO], [TWO]]
