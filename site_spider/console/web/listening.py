"""Where the console listens, and whether it may."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from site_spider.errors import ConfigError

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
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"--port is {self.port}, but must be 0 to 65535")
        if self.client_ca and not self.certificate:
            raise ConfigError(f"--client-ca is {self.client_ca!r}, but needs --certificate and --key, too.")
        if not self.is_loopback and not self.token and not self.client_ca:
            raise ConfigError(
                f"--host is {self.host!r}, which others can reach, so SITE_CONSOLE_TOKEN must be set "
                "(or --client-ca, for TLS client certificates)."
            )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def is_secret_in_the_open(self) -> bool:
        """Whether the token passes a network unencrypted."""
        return not self.is_loopback and not self.certificate

    def is_own_name(self, host: str) -> bool:
        """Whether a Host header names this console: a name of others may lead here by DNS.

        Any address will do when others may connect, because nobody can make an address lead elsewhere.
        """
        name = _without_port(host.lower())
        if name in {"localhost", "127.0.0.1", "::1", self.host.lower()}:
            return True
        if self.is_loopback:
            return False
        return _is_address(name) or name in {socket.gethostname().lower(), socket.getfqdn().lower()}

    def tls(self) -> ssl.SSLContext | None:
        """None for plain HTTP. Raises ConfigError."""
        if not self.certificate:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.certificate, self.key or None)
            if self.client_ca:
                context.load_verify_locations(cadata=Path(self.client_ca).read_text(encoding="ascii"))
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--certificate is {self.certificate!r}, --key {self.key!r}, --client-ca {self.client_ca!r}, "
                f"but they cannot be used: {error}"
            ) from error
        return context


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
