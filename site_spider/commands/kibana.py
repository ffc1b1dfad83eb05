"""`scrapy kibana`: sends the data views and dashboards of this project to a Kibana."""

from __future__ import annotations

import argparse
import base64
import json
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from site_spider import options
from site_spider.commands.kibana_import import Kibana
from site_spider.commands.output import show
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.errors import ConfigError
from site_spider.resources import resource
from site_spider.secrets import Redaction, secrets_of

_FILE: Final = "kibana/site_spider.ndjson"
_INDICES: Final = {
    "site-spider-results": "SITE_RESULTS_INDEX",
    "site-spider-items": "SITE_ITEMS_INDEX",
    "site-spider-statistics": "SITE_STATS_INDEX",
}
_SPACE: Final = re.compile(r"[a-z0-9_-]{1,200}")
_PORTS: Final = range(1, 65_536)


class Command(SiteCommand):
    """Replaces what an earlier import has left; other objects stay as they are."""

    max_arguments = 1
    description = (
        "Sends data views, searches and the dashboards Crawl, Results and Operations to Kibana 8.9 or newer. "
        "The data views have the indices of the settings SITE_RESULTS_INDEX, SITE_ITEMS_INDEX and "
        "SITE_STATS_INDEX. Objects of an earlier import are replaced. The exit code is 1 if an object failed."
    )
    examples = """
        scrapy kibana import --url http://127.0.0.1:5601
        scrapy kibana import --url https://kibana.example.com --api-key @/run/secrets/kibana_key
        scrapy kibana import --url https://kibana.example.com/base --user elastic:PASSWORD --space crawl
    """

    def syntax(self) -> str:
        """As Scrapy asks."""
        return "import --url URL [options]"

    def short_desc(self) -> str:
        """As Scrapy asks."""
        return "Send the data views and dashboards to a Kibana"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """As Scrapy asks."""
        super().add_options(parser)
        parser.add_argument("--url", metavar="URL", help="address of Kibana, such as http://127.0.0.1:5601")
        parser.add_argument(
            "--api-key", metavar="K", help="an encoded API key, or @FILE to read it from a file"
        )
        parser.add_argument("--user", metavar="NAME:PASSWORD", help="in place of an API key; or @FILE")
        parser.add_argument("--space", metavar="S", help="identifier of a space (default: the default space)")
        parser.add_argument(
            "--ca-cert", metavar="FILE", help="certificate authority of Kibana's certificate, PEM"
        )

    def work(self, opts: argparse.Namespace) -> None:
        """Import. Raises SiteSpiderError."""
        if opts.args != ["import"]:
            self.refuse(f"unknown verb {opts.args[0]!r}: say import" if opts.args else "say import")
        kibana = self._kibana(opts)
        objects = self._objects()
        imported, refusals = kibana.send("".join(f"{line}\n" for line in objects).encode())
        for refusal in refusals:
            self.complain(f"{refusal.what}: {refusal.reason}")
        show(f"imported {imported} of {len(objects) - 1} objects")
        if refusals or imported < len(objects) - 1:
            self.exitcode = EXIT_FAILED
            return
        for one in map(json.loads, objects):
            if one.get("type") == "dashboard":
                show(f"{one['attributes']['title']}: {kibana.link(one['id'])}")

    def _kibana(self, opts: argparse.Namespace) -> Kibana:
        if not opts.url:
            self.refuse("--url is missing: give the address of Kibana, such as http://127.0.0.1:5601")
        address, login = self._address(opts.url)
        key, user = _read("--api-key", opts.api_key), _read("--user", opts.user) or login
        if key and not key.isascii():
            self.refuse("--api-key has characters that no API key has")
        self._hide({key or "", *([user, user.partition(":")[2], _encoded(user)] if user else ())})
        if key and user:
            self.refuse("--api-key and a user are two ways to log in: give one of them")
        if user and ":" not in user:
            self.refuse("--user must be NAME:PASSWORD")
        if opts.space is not None and not _SPACE.fullmatch(opts.space):
            self.refuse(f"--space is {opts.space!r}, but an identifier has letters a to z, digits, _ and -")
        return Kibana(address, opts.space, _login(key, user), _certificates(opts.ca_cert))

    def _address(self, url: str) -> tuple[str, str]:
        """Without name and password, and these."""
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 80) in _PORTS
        except ValueError:
            is_good = False
        if not is_good or parts.query or parts.fragment or not url.isascii() or re.search(r"[\s\\]", url):
            self.refuse("--url must be http://host:port or https://host:port, with a path if Kibana has one")
        login, _, host = parts.netloc.rpartition("@")
        return f"{parts.scheme}://{host}{parts.path.rstrip('/')}", unquote(login)

    def _hide(self, secrets: set[str]) -> None:
        self._redaction = Redaction(secrets_of(self.options) | secrets)

    def _objects(self) -> list[str]:
        """The lines of the file, with the indices of the settings."""
        lines = resource(_FILE).read_text(encoding="utf-8").splitlines()
        return [self._with_index(line) for line in lines]

    def _with_index(self, line: str) -> str:
        one: dict[str, Any] = json.loads(line)
        setting = _INDICES.get(one["id"]) if one.get("type") == "index-pattern" else None
        if setting is None:
            return line
        title = f"{options.text(self.options, setting, required=True)}*"
        if one["attributes"]["title"] == title:
            return line
        one["attributes"]["title"] = title
        return json.dumps(one, ensure_ascii=False, separators=(",", ":"))


def _read(option: str, value: str | None) -> str | None:
    """A secret, or what is in its file. Raises ConfigError."""
    if value is None or not value.startswith("@"):
        return _checked(option, value)
    try:
        with Path(value[1:]).open(encoding="utf-8") as file:
            return _checked(option, file.read(10_000).strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} is {value!r}, which cannot be read: {error}") from None


def _checked(option: str, value: str | None) -> str | None:
    if value is not None and not (value and value.isprintable()):
        raise ConfigError(f"{option} is empty or has characters that cannot be sent.")
    return value


def _login(key: str | None, user: str | None) -> dict[str, str]:
    if key:
        return {"Authorization": f"ApiKey {key}"}
    return {"Authorization": f"Basic {_encoded(user)}"} if user else {}


def _encoded(user: str) -> str:
    return base64.b64encode(user.encode()).decode()


def _certificates(path: str | None) -> str | None:
    """Raises ConfigError."""
    if path is not None and not Path(path).is_file():
        raise ConfigError(f"--ca-cert is {path!r}, which is no file.")
    return path
