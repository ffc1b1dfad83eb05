"""Who may see the console, and who may change something."""

from __future__ import annotations

import asyncio
import encodings
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from site_spider.console import access
from site_spider.console.access import COOKIE, Listening, Sessions
from site_spider.errors import ConfigError
from tests.console.consoles import PAGES, TOKEN, Console, form_token, status


@pytest.fixture
def console(tmp_path: Path) -> Console:
    return Console(tmp_path, time.time())


@pytest.fixture
def locked(tmp_path: Path) -> Console:
    return Console(tmp_path, time.time(), token=TOKEN)


# --- where it listens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "console.example", "", "127.0.0.1.evil.test"])
def test_another_address_than_loopback_needs_a_token_or_client_certificates(host: str) -> None:
    for loopback in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        Listening(loopback, 8787).check()
    with pytest.raises(ConfigError, match="SITE_CONSOLE_TOKEN"):
        Listening(host, 8787).check()
    Listening(host, 8787, token=TOKEN).check()
    Listening(host, 8787, certificate="c.pem", key="k.pem", client_ca="ca.pem").check()


@pytest.mark.parametrize(
    ("listening", "named"),
    [
        (Listening("127.0.0.1", 8787, token="short"), "SITE_CONSOLE_TOKEN"),
        (Listening("0.0.0.0", 8787, client_ca="ca.pem"), "--certificate"),
        (Listening("127.0.0.1", 8787, key="k.pem"), "--key"),
    ],
)
def test_what_would_not_be_safe_is_refused_by_name(listening: Listening, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        listening.check()


# --- browsers of others ---------------------------------------------------------------------------------


EVERYWHERE = (*PAGES, "/metrics", "/healthz", "/static/console.js", "/login")
ASKED: list[tuple[dict[str, str], int]] = [
    *(({"Host": host}, 421) for host in ("evil.test", "127.0.0.1.evil.test", "localhost.evil.test:80",
                                         "evil.test:8787", "[::2]", "10.0.0.1", "machine.test")),
    *(({"Host": host}, 200) for host in ("localhost:1", "127.0.0.1", "[::1]:9", "LOCALHOST.")),
    *(({"Sec-Fetch-Site": site}, 403) for site in ("cross-site", "same-site", "nonsense")),
    *(({"Sec-Fetch-Site": site}, 200) for site in ("same-origin", "none")),
    *(({"Origin": site}, 403) for site in ("http://evil.test", "null", "", "http://[", "//evil.test", "x")),
]  # fmt: skip


async def test_names_and_sites_of_others_are_refused(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns a name can make it lead here. On loopback the machine's own is one of others."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: "machine.test")
    async with console.client() as client:
        own = {"Origin": f"http://{client.host}:{client.port}"}
        for headers, expected in [*ASKED, (own, 200)]:
            for path in EVERYWHERE if expected == 421 else PAGES:
                assert await status(client, path, **headers) == expected, (path, headers)


async def test_no_name_server_is_asked_for_each_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take seconds, in which others are answered."""
    asked: list[None] = []
    answers = threading.Event()

    def name(*_: Any) -> str:
        asked.append(None)
        return "machine.test" if answers.wait(300) else ""

    monkeypatch.setattr(socket, "getfqdn", name)
    async with Console(tmp_path, time.time(), host="0.0.0.0", token=TOKEN).client() as client:
        both = [asyncio.create_task(status(client, Host=name)) for name in ("evil.test", "machine.test:8787")]
        while not asked:
            assert await status(client) == 401
        answers.set()
        assert await asyncio.gather(*both) == [421, 401]
        assert await status(client, Host="evil.test") == 421
    assert len(asked) == 1


async def test_the_machine_has_its_name_when_the_name_server_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A console may start before the network does; what was once known stays."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: "machine")
    async with Console(tmp_path, time.time(), host="0.0.0.0", token=TOKEN).client() as client:
        assert await status(client, Host="machine.test") == 421
        monkeypatch.setattr(socket, "getfqdn", lambda *_: "machine.test")
        assert await status(client, Host="machine.test") == 421
        monkeypatch.setattr(access, "_NAMES_SECONDS", 0)
        assert await status(client, Host="machine.test") == 401
        monkeypatch.setattr(socket, "getfqdn", lambda *_: "machine")
        assert [await status(client, Host=name) for name in ("evil.test", "machine.test")] == [421, 401]


async def test_a_program_may_send_no_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As checks of load balancers do. Browsers send one, so no other site has sent this."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("a name server was asked"))
    async with Console(tmp_path, time.time(), host="0.0.0.0", token=TOKEN).client() as client:
        for given, expected in ((TOKEN, b"503"), ("wrong", b"401")):
            reader, writer = await asyncio.open_connection(client.host, client.port)
            writer.write(b"GET /healthz HTTP/1.0\r\nAuthorization: Bearer %s\r\n\r\n" % given.encode())
            assert (await reader.readline()).split()[1] == expected
            writer.close()


async def test_every_answer_has_the_strict_headers(console: Console) -> None:
    async with console.client() as client:
        for path in (*PAGES, "/no-such-page", "/static/console.css", "/metrics"):
            response = await client.get(path)
            policy = response.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert response.headers["X-Content-Type-Options"] == "nosniff"
            assert response.headers["Referrer-Policy"] == "same-origin"  # with none, forms have no Origin
            assert "Python" not in response.headers["Server"]
        refused = await client.get("/", headers={"Host": "evil.test"})
        assert "default-src 'none'" in refused.headers["Content-Security-Policy"]
        client.session.cookie_jar.clear()
        cookie = (await client.get("/")).headers["Set-Cookie"]
        assert cookie.startswith(f"{COOKIE}_{client.port}=")
        assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}


# --- changes ------------------------------------------------------------------------------------------------


async def test_a_change_needs_the_token_of_the_session_and_comes_from_here(console: Console) -> None:
    async with console.client() as client:
        right, replay = await form_token(client), "/failures/replay"
        data, evil = {"form_token": right}, "https://evil.test"
        wrong = ({}, {"form_token": ""}, {"form_token": right[:-1]}, {"form_token": "é" * 9000})
        others: list[tuple[str, str, dict[str, str], dict[str, str], int]] = [
            *(("POST", replay, {}, given, 403) for given in wrong),
            ("POST", replay, {"Sec-Fetch-Site": "cross-site"}, data, 403),
            ("POST", replay, {"Origin": evil}, data, 403),
            ("POST", replay, {"Host": "evil.test"}, data, 421),
            *((method, replay, {}, data, 405) for method in ("PUT", "DELETE", "PATCH", "GET")),
            ("POST", "/", {}, data, 405),
            ("POST", replay, {}, {"a": "x" * 1_000_000}, 413),
            ("POST", replay, {}, data, 303),
        ]
        for method, path, headers, given, expected in others:
            answer = await client.request(method, path, data=given, headers=headers, allow_redirects=False)
            assert answer.status == expected, (method, path, headers)
        client.session.cookie_jar.clear()
        await client.get("/")  # another session
        assert (await client.post(replay, data=data)).status == 403


async def test_consoles_at_several_ports_of_a_host_leave_each_other_their_sessions(
    console: Console, tmp_path: Path
) -> None:
    """Browsers tell cookies of a host apart by their names alone."""
    async with (
        console.client() as one,
        TestClient(
            TestServer(Console(tmp_path / "other", time.time()).app, host="127.0.0.1"),
            cookie_jar=one.session.cookie_jar,
        ) as other,
    ):
        data = {"form_token": await form_token(one)}
        await other.get("/")
        assert (await one.post("/failures/replay", data=data)).status == 200


async def test_ports_that_change_leave_no_more_cookies_than_a_request_has_room_for(console: Console) -> None:
    """As with --port 0, and where `kubectl port-forward` chooses one."""
    async with console.client() as client:
        others = [f"{COOKIE}_{number}=x" for number in range(50)]
        others += [f"{COOKIE}_{{{number}=x" for number in range(50)]  # of something else, with a name that is none
        answer = await client.get("/", headers={"Cookie": f"7=x; {'; '.join(others)}"})
        own = f"{COOKIE}_{client.port}"
    ended = {cookie.key for cookie in answer.cookies.values() if cookie["max-age"] == "0"}
    assert ended == {f"{COOKIE}_{number}" for number in range(30)}
    assert set(answer.cookies) - ended == {own}


MULTIPART = "multipart/form-data; boundary=a"
NO_FORMS: list[tuple[dict[str, str], bytes]] = [
    ({"Content-Type": "multipart/form-data"}, b"x"),
    ({"Content-Type": "application/x-www-form-urlencoded; charset=no-console"}, b"token=x"),
    ({"Content-Type": "application/x-www-form-urlencoded"}, b"token=\xff\xfe"),
    ({"Content-Type": MULTIPART}, b"--a\r\ngarbage"),
    (
        {"Content-Type": MULTIPART},
        b'--a\r\nContent-Disposition: form-data; name="token"\r\nContent-Type: text/plain; charset=no-console-2\r\n\r\n'
        b"x\r\n--a--\r\n",
    ),
    ({"Content-Type": MULTIPART}, b'--a\r\nContent-Disposition: form-data; name="token"\r\n\r\n\xff\r\n--a--\r\n'),
    ({"Content-Type": MULTIPART}, b"--a\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n"),
]


async def test_what_is_no_form_is_refused(console: Console, locked: Console, caplog: pytest.LogCaptureFixture) -> None:
    """The log is silent, and no memory is taken: anybody can send it."""

    async with locked.client() as client:
        for headers, body in NO_FORMS:
            assert (await client.post("/login", data=body, headers=headers)).status == 400, body
    async with console.client() as client:
        await form_token(client)
        for path in ("/failures/replay", "/tasks/order"):
            headers, body = NO_FORMS[0]
            assert (await client.post(path, data=body, headers=headers)).status == 400
    assert "could not answer" not in caplog.text
    assert not [name for name in encodings._cache if "no_console" in name]  # type: ignore[attr-defined]


async def test_a_form_that_does_not_end_holds_no_connection(locked: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can begin so many as there are file descriptors."""
    monkeypatch.setattr(access, "_FORM_SECONDS", 0.1)
    async with locked.client() as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n")
        writer.write(b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken=")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()


# --- the token ----------------------------------------------------------------------------------------------


async def test_nothing_is_shown_to_a_user_without_the_token(locked: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_WRONG_TOKEN_SECONDS", 0.0)
    async with locked.client() as client:
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


async def test_who_knows_the_token_gets_a_session(locked: Console) -> None:
    """Programs give it each time."""
    async with locked.client() as client:
        assert await status(client, "/metrics", Authorization=f"Bearer {TOKEN}") == 200
        assert not client.session.cookie_jar.filter_cookies(client.make_url("/"))
        wrong = await client.post("/login", data={"token": "wrong"})
        assert wrong.status == 403
        assert "Set-Cookie" not in wrong.headers
        right = await client.post("/login", data={"token": TOKEN})
        assert right.status == 200
        assert TOKEN not in await right.text()
        for path in PAGES:
            assert await status(client, path) == 200
        assert await form_token(client)


async def test_a_session_ends_after_a_week(locked: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cookie that somebody got hold of opens the console no longer; a console may run for months."""
    began = time.monotonic()
    async with locked.client() as client:
        await client.post("/login", data={"token": TOKEN})
        for days, expected in ((6, 200), (8, 401)):
            monkeypatch.setattr("site_spider.runtime.monotonic", lambda days=days: began + days * 86_400)
            assert await status(client) == expected


async def test_guessing_is_slow_and_does_not_hold_up_the_owner(
    locked: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with locked.client() as client:
        guesses = [status(client, Authorization=f"Bearer wrong{number}") for number in range(4)]
        monkeypatch.setattr(access, "_WRONG_TOKEN_SECONDS", 600)
        guess = asyncio.create_task(guesses.pop())
        assert await status(client, Authorization=f"Bearer {TOKEN}") == 200
        assert not guess.done()
        guess.cancel()
        monkeypatch.setattr(access, "_WRONG_TOKEN_SECONDS", 0.2)
        began = time.monotonic()
        assert await asyncio.gather(*guesses) == [401] * 3
        assert time.monotonic() - began >= 0.6


async def test_guesses_do_not_pile_up(locked: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guesses that wait are few; no other token is compared meanwhile, as its answer would tell at once."""
    monkeypatch.setattr(access, "_WRONG_TOKEN_SECONDS", 600)
    async with locked.client() as client:
        [session] = (await client.post("/login", data={"token": TOKEN}, allow_redirects=False)).cookies.values()
        client.session.cookie_jar.clear()
        guesses = [asyncio.create_task(status(client, Authorization=f"Bearer wrong{n}")) for n in range(30)]
        done, _ = await asyncio.wait(guesses, timeout=300, return_when=asyncio.FIRST_COMPLETED)
        assert {guess.result() for guess in done} == {429}
        assert (await client.post("/login", data={"token": TOKEN})).status == 429
        assert await status(client, Cookie=f"{session.key}={session.value}") == 200
        for guess in guesses:
            guess.cancel()


@pytest.mark.parametrize("cookie", ["", ".", "name.", ".0000", "a.b", "é.é", "x" * 10_000])
def test_a_session_cannot_be_made_up(cookie: str) -> None:
    sessions = Sessions(TOKEN)
    assert not sessions.is_valid(cookie)
    assert not sessions.is_valid(Sessions(TOKEN).new()), "of another process"
    assert sessions.is_valid(sessions.new())
    assert not sessions.is_token("")
    assert not sessions.is_token("\ud800")
