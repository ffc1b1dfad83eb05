"""Who may see the console, and who may change something."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from site_spider.console import guard
from site_spider.console.guard import COOKIE, Listening, Sessions
from site_spider.errors import ConfigError
from tests.console.consoles import PAGES, TOKEN, Client, Console, form_token, status


@pytest.fixture
def console(tmp_path: Path) -> Console:
    return Console(tmp_path, time.time())


@pytest.fixture
def locked(tmp_path: Path) -> Console:
    return Console(tmp_path, time.time(), token=TOKEN)


# --- where it listens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    Listening(host, 8787).check()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "console.example", "", "127.0.0.1.evil.test"])
def test_another_address_needs_a_token_or_client_certificates(host: str) -> None:
    with pytest.raises(ConfigError, match="SITE_CONSOLE_TOKEN"):
        Listening(host, 8787).check()
    Listening(host, 8787, token=TOKEN).check()
    Listening(host, 8787, certificate="c.pem", key="k.pem", client_ca="ca.pem").check()


@pytest.mark.parametrize(
    ("listening", "named"),
    [
        (Listening("127.0.0.1", 8787, token="short"), "SITE_CONSOLE_TOKEN"),
        (Listening("0.0.0.0", 8787, client_ca="ca.pem"), "--certificate"),
        (Listening("127.0.0.1", 99_999), "--port"),
    ],
)
def test_what_would_not_be_safe_is_refused_by_name(listening: Listening, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        listening.check()


def test_certificates_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--certificate"):
        Listening("127.0.0.1", 0, certificate=str(tmp_path / "none.pem")).tls()


# --- browsers of others ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["evil.test", "127.0.0.1.evil.test", "localhost.evil.test:80", "evil.test:8787", "[::2]", "10.0.0.1"],
)
def test_a_name_of_others_is_refused(console: Console, host: str) -> None:
    """Whoever owns a name can make it lead here."""

    async def scenario(client: Client) -> None:
        for path in (*PAGES, "/metrics", "/healthz", "/static/console.js", "/login"):
            assert await status(client, path, Host=host) == 421

    console.serve(scenario)


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:9", "LOCALHOST."])
def test_own_names_are_taken(console: Console, host: str) -> None:
    async def scenario(client: Client) -> None:
        assert await status(client, Host=host) == 200

    console.serve(scenario)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
def test_requests_of_other_sites_are_refused(console: Console, site: str) -> None:
    async def scenario(client: Client) -> None:
        for path in PAGES:
            assert await status(client, path, **{"Sec-Fetch-Site": site}) == 403
        assert await status(client, **{"Sec-Fetch-Site": "same-origin"}) == 200
        assert await status(client, **{"Sec-Fetch-Site": "none"}) == 200
        assert await status(client, Origin="http://evil.test") == 403
        for origin in ("null", "", "http://[", "//evil.test", "x"):
            assert await status(client, Origin=origin) == 403
        own = f"{client.host}:{client.port}"
        assert await status(client, Origin=f"http://{own}") == 200

    console.serve(scenario)


def test_every_answer_has_the_strict_headers(console: Console) -> None:
    async def scenario(client: Client) -> None:
        for path in (*PAGES, "/no-such-page", "/static/console.css", "/metrics"):
            response = await client.get(path)
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Referrer-Policy"] == "same-origin"  # with none, forms have no Origin
            assert "Python" not in response.headers["Server"]
        for refused in (await client.get("/", headers={"Host": "evil.test"}),):
            assert "default-src 'none'" in refused.headers["Content-Security-Policy"]

    console.serve(scenario)


def test_the_cookie_is_for_the_server_alone(console: Console) -> None:
    async def scenario(client: Client) -> None:
        cookie = (await client.get("/")).headers["Set-Cookie"]
        assert cookie.startswith(f"{COOKIE}=")
        assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}

    console.serve(scenario)


# --- changes ------------------------------------------------------------------------------------------------


def test_a_change_needs_the_token_of_the_session(console: Console) -> None:
    async def scenario(client: Client) -> None:
        right = await form_token(client)
        for given in ({}, {"form_token": ""}, {"form_token": right[:-1]}, {"form_token": "é" * 9000}):
            assert (await client.post("/failures/replay", data=given)).status == 403
        answer = await client.post("/failures/replay", data={"form_token": right}, allow_redirects=False)
        assert answer.status == 303
        client.session.cookie_jar.clear()
        await client.get("/")  # another session
        assert (await client.post("/failures/replay", data={"form_token": right})).status == 403

    console.serve(scenario)


def test_a_change_from_another_site_is_refused_even_with_the_token(console: Console) -> None:
    async def scenario(client: Client) -> None:
        data = {"form_token": await form_token(client)}
        for headers in (
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": "https://evil.test"},
            {"Host": "evil.test"},
        ):
            assert (await client.post("/failures/replay", data=data, headers=headers)).status in (403, 421)

    console.serve(scenario)


def test_pages_are_not_changed_by_other_methods(console: Console) -> None:
    async def scenario(client: Client) -> None:
        data = {"form_token": await form_token(client)}
        for method in ("PUT", "DELETE", "PATCH"):
            assert (await client.request(method, "/failures/replay", data=data)).status == 405
        assert (await client.get("/failures/replay")).status == 405
        assert (await client.post("/", data=data)).status == 405

    console.serve(scenario)


def test_a_huge_form_is_refused(console: Console) -> None:
    async def scenario(client: Client) -> None:
        await client.get("/")
        assert (await client.post("/failures/replay", data={"a": "x" * 1_000_000})).status == 413

    console.serve(scenario)


# --- the token ----------------------------------------------------------------------------------------------


def test_nothing_is_shown_to_a_user_without_the_token(locked: Console) -> None:
    async def scenario(client: Client) -> None:
        for path in (*PAGES, "/metrics", "/healthz", "/no-such-page"):
            assert await status(client, path) == 401
            assert await status(client, path, Accept="text/html") == 303
            for wrong in ("Bearer", f"Basic {TOKEN}"):
                assert await status(client, path, Authorization=wrong) == 401
        assert await status(client, Authorization=f"Bearer {TOKEN}x") == 401
        assert (await client.post("/failures/replay", data={})).status == 401
        form = await (await client.get("/login")).text()
        assert '<input type="password" name="token"' in form
        assert "site_spider" not in form[form.index("<main") : form.index("</main>")]

    locked.serve(scenario)


def test_who_knows_the_token_gets_a_session(locked: Console) -> None:
    async def scenario(client: Client) -> None:
        wrong = await client.post("/login", data={"token": "wrong"})
        assert wrong.status == 403
        assert "Set-Cookie" not in wrong.headers
        right = await client.post("/login", data={"token": TOKEN})
        assert right.status == 200
        assert TOKEN not in await right.text()
        for path in PAGES:
            assert await status(client, path) == 200
        assert await form_token(client)

    locked.serve(scenario)


def test_programs_give_the_token_each_time(locked: Console) -> None:
    async def scenario(client: Client) -> None:
        assert await status(client, "/metrics", Authorization=f"Bearer {TOKEN}") == 200
        assert not client.session.cookie_jar.filter_cookies(client.make_url("/"))

    locked.serve(scenario)


def test_guessing_is_slow_and_does_not_hold_up_the_owner(
    locked: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(client: Client) -> None:
        guesses = [status(client, Authorization=f"Bearer wrong{number}") for number in range(4)]
        monkeypatch.setattr(guard, "_WRONG_TOKEN_SECONDS", 600)
        guess = asyncio.create_task(guesses.pop())
        assert await status(client, Authorization=f"Bearer {TOKEN}") == 200
        assert not guess.done()
        guess.cancel()
        monkeypatch.setattr(guard, "_WRONG_TOKEN_SECONDS", 0.2)
        began = time.monotonic()
        assert await asyncio.gather(*guesses) == [401] * 3
        assert time.monotonic() - began >= 0.6

    locked.serve(scenario)


@pytest.mark.parametrize("cookie", ["", ".", "name.", ".0000", "a.b", "é.é", "x" * 10_000])
def test_a_session_cannot_be_made_up(cookie: str) -> None:
    sessions = Sessions(TOKEN)
    assert not sessions.is_valid(cookie)
    assert not sessions.is_valid(Sessions(TOKEN).new()), "of another process"
    assert sessions.is_valid(sessions.new())
    assert not sessions.is_token("")
    assert not sessions.is_token("\ud800")
