"""Sessions of the console, and the tokens of their forms.

Nothing is stored: a session is a random name with a signature of this process, so it ends with the process.
The signature says whether its owner has given SITE_CONSOLE_TOKEN.
"""

from __future__ import annotations

import hmac

from site_spider import runtime

COOKIE = "site_console"

_NAME_BYTES = 18
_LONGEST = 300


class Sessions:
    """`token` is SITE_CONSOLE_TOKEN, empty when nobody has to give one."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._key = runtime.token_bytes(32)

    @property
    def needs_token(self) -> bool:
        """Whether pages are for those only who know the token."""
        return bool(self._token)

    def is_token(self, given: str) -> bool:
        """Whether this is the token; takes as long whatever it is."""
        mine, theirs = self._digest("token", self._token), self._digest("token", _bytes(given))
        return hmac.compare_digest(mine, theirs)

    def new(self) -> str:
        """A session, as the cookie has it."""
        name = runtime.token_urlsafe(_NAME_BYTES)
        return f"{name}.{self._sign('session', name)}"

    def is_valid(self, cookie: str) -> bool:
        """Whether this process made it."""
        name, _, signature = cookie[:_LONGEST].partition(".")
        return bool(name) and hmac.compare_digest(_bytes(self._sign("session", name)), _bytes(signature))

    def form_token(self, cookie: str) -> str:
        """What the forms of a session carry."""
        return self._sign("form", cookie)

    def is_form_token(self, cookie: str, given: str) -> bool:
        """Whether a form is of this session."""
        return hmac.compare_digest(_bytes(self.form_token(cookie)), _bytes(given[:_LONGEST]))

    def _sign(self, purpose: str, text: str) -> str:
        return self._digest(purpose, _bytes(text)).hex()

    def _digest(self, purpose: str, raw: bytes) -> bytes:
        return hmac.digest(self._key, purpose.encode() + b"\0" + raw, "sha256")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
