"""Who may ask for what: every request passes here, and every answer gets its headers here.

In this order: the name that was asked for, where the request comes from, the session, and for a change the
token of the form.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from site_spider.console.web.listening import Listening
from site_spider.console.web.sessions import COOKIE, Sessions

logger = logging.getLogger(__name__)

FORM_TOKEN = "form_token"  # noqa: S105 - the name of a field
LOGIN = "/login"
SESSION = web.RequestKey("session", str)

_OPEN = ("/static/", LOGIN)
_SAFE = ("GET", "HEAD")
_WRONG_TOKEN_SECONDS = 0.5
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
    """The middlewares of the console."""

    def __init__(self, listening: Listening, sessions: Sessions) -> None:
        self._listening = listening
        self._sessions = sessions
        self._one_guess = asyncio.Lock()

    @property
    def middleware(self) -> Middleware:
        """As aiohttp asks."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                response = await self._answer(request, handler)
            except web.HTTPException as error:
                error.headers.update(_HEADERS)
                raise
            except Exception:
                logger.exception("The console could not answer %s", request.path)
                response = web.Response(status=500, text="The console could not answer; its log says why.\n")
            response.headers.update(_HEADERS)
            if request.path.startswith("/static/"):
                response.headers["Cache-Control"] = "no-cache"
            return response

        return guarded

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self._check_origin(request)
        session = request.cookies.get(COOKIE, "")
        is_known = self._sessions.is_valid(session)
        if not is_known and not request.path.startswith(_OPEN):
            is_known, session = await self._without_session(request)
        if request.method not in _SAFE:
            await self._check_form(request, session)
        request[SESSION] = session
        response = await handler(request)
        if is_known and session and session != request.cookies.get(COOKIE):
            self.set_cookie(response, session)
        return response

    def _check_origin(self, request: web.Request) -> None:
        """Refuse what another site sends through somebody's browser."""
        if not self._listening.is_own_name(request.host):
            raise web.HTTPMisdirectedRequest(text="This console does not go by this name.\n")
        if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise web.HTTPForbidden(text="Another site sent this request. Open the address yourself.\n")
        own = f"//{request.host}".lower()
        if request.headers.get("Origin", own).lower().removeprefix("http:").removeprefix("https:") != own:
            raise web.HTTPForbidden(text="Another site sent this request.\n")

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
        """Whether it is right; wrong ones are answered one by one, slowly."""
        if self._sessions.is_token(given):
            return True
        async with self._one_guess:
            await asyncio.sleep(_WRONG_TOKEN_SECONDS)
        return False

    async def _check_form(self, request: web.Request, session: str) -> None:
        if request.path == LOGIN:  # there is no session yet; Origin and SameSite stand for the token
            return
        form = await request.post()
        given = form.get(FORM_TOKEN, "")
        if not session or not isinstance(given, str) or not self._sessions.is_form_token(session, given):
            raise web.HTTPForbidden(text="The form is not of this session. Load the page again.\n")

    def set_cookie(self, response: web.StreamResponse, session: str) -> None:
        """For this session of the browser."""
        is_secure = bool(self._listening.certificate)
        response.set_cookie(COOKIE, session, path="/", httponly=True, samesite="Strict", secure=is_secure)
