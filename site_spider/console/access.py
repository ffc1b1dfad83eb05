"""Who may ask for what: every request passes here, and every answer gets its headers here.

In this order: the name that was asked for, where the request comes from, the session, and for a change the
token of the form.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import logging
import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from site_spider import runtime
from site_spider.errors import ConfigError

# --- listening: where the console listens, and whether it may --------------------------------------------

_SHORTEST_TOKEN = 16  # characters


@dataclass(frozen=True, slots=True)
class Listening:
    """An address that was checked; `certificate` and `key` are files, `client_ca` those who may connect."""

    host: str
    port: int
    token: str = ""
    certificate: str = ""
    key: str = ""
    client_ca: str = ""

    def check(self) -> None:
        """Raise ConfigError unless the pages would be safe there."""
        if self.token and len(self.token) < _SHORTEST_TOKEN:
            raise ConfigError(
                f"SITE_CONSOLE_TOKEN has {len(self.token)} characters, but must have at least "
                f"{_SHORTEST_TOKEN}; `openssl rand -hex 32` makes one."
            )
        if self.key and not self.certificate:
            raise ConfigError(f"--key is {self.key!r}, but needs --certificate, too.")
        if self.client_ca and not self.certificate:
            raise ConfigError(f"--client-ca is {self.client_ca!r}, but needs --certificate and --key, too.")
        if not self.is_loopback and not self.token and not self.client_ca:
            raise ConfigError(
                f"--host is {self.host!r}, which others can reach, so SITE_CONSOLE_TOKEN must be set "
                "(or --client-ca, for TLS client certificates)."
            )

    @property
    def is_loopback(self) -> bool:
        address = _address(self.host)
        return self.host == "localhost" if address is None else address.is_loopback

    def is_own_name(self, host: str) -> bool:
        """Whether a Host header names this console: a name of others may lead here by DNS.

        Any address will do when others may connect, because nobody can make an address lead elsewhere.
        """
        name = _without_port(host.lower())
        if name in {"localhost", "127.0.0.1", "::1", self.host.lower()}:
            return True
        if self.is_loopback:
            return False
        return _address(name) is not None

    def tls(self) -> ssl.SSLContext | None:
        """None for plain HTTP. Raises ConfigError."""
        if not self.certificate:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        named = {"--certificate": self.certificate, "--key": self.key, "--client-ca": self.client_ca}
        files = {option: path for option, path in named.items() if path}
        try:
            for path in files.values():
                Path(path).open("rb").close()  # ssl does not say which it cannot find
            context.load_cert_chain(self.certificate, self.key or None)
            if self.client_ca:
                context.load_verify_locations(cadata=Path(self.client_ca).read_text(encoding="ascii"))
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            given = ", ".join(f"{option} {path!r}" for option, path in files.items())
            hint = "" if self.key else " (without --key the certificate's file must hold the key, too)"
            raise ConfigError(f"{given} cannot be used{hint}: {error}") from error
        return context


def _names_of_machine() -> set[str]:
    """One of them is asked of a name server, which may take seconds."""
    return {socket.gethostname().lower(), socket.getfqdn().lower()}


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


# --- Sessions of the console, and the tokens of their forms ----------------------------------------------
# Nothing is stored: a session is a random name, and when it began, with a signature of this process. So it ends
# with the process, or after a week. The signature says whether its owner has given SITE_CONSOLE_TOKEN.

COOKIE = "site_console"

_NAME_BYTES = 18
_LONGEST = 300
_SESSION_SECONDS = 604_800


class Sessions:
    """`token` is SITE_CONSOLE_TOKEN, empty when nobody has to give one."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self.needs_token = bool(token)
        self._key = runtime.token_bytes(32)

    def is_token(self, given: str) -> bool:
        """Whether this is the token; takes as long whatever it is."""
        mine, theirs = self._digest("token", self._token), self._digest("token", _bytes(given))
        return hmac.compare_digest(mine, theirs)

    def new(self) -> str:
        name = f"{runtime.monotonic():.0f}-{runtime.token_urlsafe(_NAME_BYTES)}"
        return f"{name}.{self._sign('session', name)}"

    def is_valid(self, cookie: str) -> bool:
        name, _, signature = cookie[:_LONGEST].partition(".")
        is_own = hmac.compare_digest(_bytes(self._sign("session", name)), _bytes(signature))
        return is_own and runtime.monotonic() < int(name.partition("-")[0]) + _SESSION_SECONDS

    def form_token(self, cookie: str) -> str:
        return self._sign("form", cookie)

    def is_form_token(self, cookie: str, given: str) -> bool:
        return hmac.compare_digest(_bytes(self.form_token(cookie)), _bytes(given[:_LONGEST]))

    def _sign(self, purpose: str, text: str) -> str:
        return self._digest(purpose, _bytes(text)).hex()

    def _digest(self, purpose: str, raw: bytes) -> bytes:
        return hmac.digest(self._key, purpose.encode() + b"\0" + raw, "sha256")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


logger = logging.getLogger(__name__)

FORM_TOKEN = "form_token"  # noqa: S105 - the name of a field
LOGIN = "/login"
SESSION = web.RequestKey("session", str)

_OPEN = ("/static/", LOGIN)
_SAFE = ("GET", "HEAD")
_WRONG_TOKEN_SECONDS = 0.5
_NAMES_SECONDS = 60.0  # between looks for names of the machine: anybody may ask for any name
_FORM_SECONDS = 20.0  # that a body may take: anybody can begin one, and each has a connection
_MOST_GUESSES = 20  # that wait
_WITH_PORT = re.compile(rf"{COOKIE}_[0-9]+")
_MOST_COOKIES = 20  # of consoles at other ports of the host; with very many the head of a request is too long
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
    "Server": "site_spider",
}


class Guard:
    """What every request passes first."""

    def __init__(self, listening: Listening, sessions: Sessions) -> None:
        self._listening = listening
        self._sessions = sessions
        self._one_guess = asyncio.Lock()
        self._guesses = 0
        self._names: set[str] = set()  # of the machine
        self._names_asked_at = -_NAMES_SECONDS
        self._one_naming = asyncio.Lock()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await self._answer(request, handler)
        except web.HTTPException as error:
            error.headers.update(_HEADERS)
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # anybody can ask for such a file
                raise web.HTTPNotFound(headers=_HEADERS) from error
            logger.exception("The console could not answer %s", request.path)
            response = web.Response(status=500, text="The console could not answer; its log says why.\n")
        response.headers.update(_HEADERS)
        if request.path.startswith("/static/"):
            response.headers["Cache-Control"] = "no-cache"
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        await self._check_origin(request)
        session = request.cookies.get(_cookie_of(request), "")
        is_known = self._sessions.is_valid(session)
        if not is_known and not request.path.startswith(_OPEN):
            is_known, session = await self._without_session(request)
        if request.method not in _SAFE:
            await self._check_form(request, session)
        request[SESSION] = session
        response = await handler(request)
        if is_known and session and session != request.cookies.get(_cookie_of(request)):
            self.set_cookie(request, response, session)
        return response

    async def _check_origin(self, request: web.Request) -> None:
        """Refuse what another site sends through somebody's browser."""
        host = _host(request)  # only programs send none
        if host and not self._listening.is_own_name(host) and not await self._is_name_of_machine(host):
            raise web.HTTPMisdirectedRequest(text="This console does not go by this name.\n")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise web.HTTPForbidden(text="Another site sent this request. Open the address yourself.\n")
        own = f"//{host}".lower()
        if request.headers.get("Origin", own).lower().removeprefix("http:").removeprefix("https:") != own:
            raise web.HTTPForbidden(text="Another site sent this request.\n")

    async def _is_name_of_machine(self, host: str) -> bool:
        """Where others may connect. Those that are known are never asked for again, in case no name server answers."""
        name = _without_port(host.lower())
        if self._listening.is_loopback or name in self._names:
            return name in self._names
        async with self._one_naming:
            if runtime.monotonic() - self._names_asked_at >= _NAMES_SECONDS:
                self._names |= await asyncio.to_thread(_names_of_machine)
                self._names_asked_at = runtime.monotonic()
        return name in self._names

    async def _without_session(self, request: web.Request) -> tuple[bool, str]:
        """A new session where nobody has to give a token; none for programs, which give it each time."""
        if not self._sessions.needs_token:
            return True, self._sessions.new()
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and await self.is_token(given.strip()):
            return True, ""
        if request.method in _SAFE and "text/html" in request.headers.get("Accept", ""):
            raise web.HTTPSeeOther(LOGIN)
        raise web.HTTPUnauthorized(
            text="This console needs SITE_CONSOLE_TOKEN: Authorization: Bearer TOKEN.\n",
            headers={"WWW-Authenticate": "Bearer"},
        )

    async def is_token(self, given: str) -> bool:
        """Whether it is right; wrong ones are answered one by one, slowly. Raises HTTPTooManyRequests."""
        if self._guesses >= _MOST_GUESSES:  # not even compared: a right one would be told from a wrong one at once
            raise web.HTTPTooManyRequests(text="Too many wrong tokens were given. Try again in a minute.\n")
        if self._sessions.is_token(given):
            return True
        self._guesses += 1
        try:
            async with self._one_guess:
                await asyncio.sleep(_WRONG_TOKEN_SECONDS)
        finally:
            self._guesses -= 1
        return False

    async def _check_form(self, request: web.Request, session: str) -> None:
        # Python keeps each name of an encoding that it does not know, and anybody may send others
        if request.content_type.startswith("multipart/") or (request.charset or "utf-8").lower() != "utf-8":
            raise web.HTTPBadRequest(text="A form is application/x-www-form-urlencoded, in UTF-8.\n")
        try:
            async with asyncio.timeout(_FORM_SECONDS):
                form = await request.post()  # the handlers are given the same
        except web.HTTPException:  # it is too long
            raise
        except Exception as error:  # each way to be no form has one of its own
            raise web.HTTPBadRequest(text="The body of the request is no form.\n") from error
        if request.path == LOGIN:  # there is no session yet; Origin and SameSite stand for the token
            return
        given = form.get(FORM_TOKEN, "")
        if not session or not isinstance(given, str) or not self._sessions.is_form_token(session, given):
            raise web.HTTPForbidden(text="The form is not of this session. Load the page again.\n")

    def set_cookie(self, request: web.Request, response: web.StreamResponse, session: str) -> None:
        name, is_secure = _cookie_of(request), bool(self._listening.certificate)
        response.set_cookie(name, session, path="/", httponly=True, samesite="Strict", secure=is_secure)
        others = [each for each in request.cookies if _WITH_PORT.fullmatch(each) and each != name]
        for oldest in others[:-_MOST_COOKIES]:  # browsers send the oldest first
            response.del_cookie(oldest, path="/")


def _cookie_of(request: web.Request) -> str:
    """Its name has the port: browsers tell hosts apart, but not the consoles at several ports of one."""
    port = _host(request).rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isascii() and port.isdigit() else COOKIE


def _host(request: web.Request) -> str:
    """As it was sent; in place of one that was not, `request.host` would ask a name server, on the event loop."""
    return request.headers.get("Host", "")
