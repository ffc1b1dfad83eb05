"""`scrapy kibana`: sends the data views and dashboards of this project to a Kibana."""

from __future__ import annotations

import argparse
import base64
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, NameResolutionError, NewConnectionError, SSLError
from urllib3.filepost import encode_multipart_formdata

from site_spider import options, runtime
from site_spider.commands.output import show
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.installation import resource
from site_spider.observe.metrics.catalogue import at
from site_spider.redaction import Redaction, secrets_of
from site_spider.text import cut

# --- kibana import: sends saved objects to a Kibana, and reads what it says of each ----------------------

_NAME: Final = "site_spider.ndjson"
_TIMEOUT: Final = urllib3.Timeout(connect=10, read=60)
_ANSWER_SECONDS: Final = 120.0  # for all reads of an answer together
_MOST_BYTES: Final = 4_000_000  # of an answer; a longer one is not Kibana's
_SHOWN: Final = 300  # characters of what a server says
_MOST_SHOWN: Final = 100  # objects that failed


@dataclass(frozen=True)
class Kibana:
    """A space of a Kibana; `address` has no password."""

    address: str
    space: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_cert: str | None = None

    def send(self, objects: bytes) -> tuple[int, list[str]]:
        """How many objects were imported, and which were not and why. Raises SinkUnavailable."""
        body, kind = encode_multipart_formdata({"file": (_NAME, objects, "application/ndjson")})
        try:
            context = ssl.create_default_context(cafile=self.ca_cert)
            with urllib3.PoolManager(timeout=_TIMEOUT, retries=False, ssl_context=context) as pool:
                answer = pool.request(
                    "POST",
                    f"{self.address}{self._prefix}/api/saved_objects/_import?overwrite=true",
                    body=body,
                    headers={"kbn-xsrf": "site_spider", "Content-Type": kind, **self.headers},
                    redirect=False,
                    preload_content=False,
                )
                said = _object(answer)
                answer.close()
        except (HTTPError, OSError, ValueError) as error:
            raise SinkUnavailable(f"{self.address} cannot be asked: {_explained(error)}") from error
        count, is_success = said.get("successCount"), said.get("success")
        if answer.status == 200 and isinstance(count, int) and isinstance(is_success, bool):
            refusals = list(_refusals(said.get("errors")))
            if not refusals and not is_success:
                refusals = ["the import: failed without a reason; look into the log of Kibana"]
            return count, refusals
        reason = said.get("message")
        detail = f" ({cut(reason, _SHOWN)})" if isinstance(reason, str) else ""
        remedy = self._remedy(answer.status, answer.headers, said)
        raise SinkUnavailable(f"{self.address} answers HTTP {answer.status}{detail}: {remedy}")

    def link(self, dashboard: str) -> str:
        return f"{self.address}{self._prefix}/app/dashboards#/view/{quote(dashboard)}"

    @property
    def _prefix(self) -> str:
        return f"/s/{self.space}" if self.space else ""

    def _remedy(self, status: int, headers: Mapping[str, str], said: Mapping[str, Any]) -> str:
        if status in _REMEDIES:
            return _REMEDIES[status]
        if 300 <= status < 400:
            place = cut(headers.get("location", ""), _SHOWN)
            return f"it leads to {place!r}; give that URL, or --api-key or --user"
        if status == 404 and self.space and "message" in said:
            return f"there is no space {self.space!r}; --space takes an identifier, as after /s/ in its URLs"
        if "kbn-name" in headers or {"statusCode", "message"} <= said.keys():
            return "look into the log of Kibana"
        return "that is not Kibana; --url is its address, usually with port 5601, and its path if it has one"


_REMEDIES: Final = {
    401: "give --api-key KEY or --user NAME:PASSWORD that it accepts",
    403: "the user needs the privilege Saved Objects Management (all) in this space",
    413: "raise savedObjects.maxImportPayloadBytes, and the limit of a proxy before it",
    503: "Kibana is not ready; try again later",
}


def _object(answer: urllib3.BaseHTTPResponse) -> Mapping[str, Any]:
    """What an answer is in its first _MOST_BYTES; empty if that is no object.

    Raises ValueError if it takes longer than _ANSWER_SECONDS.
    """
    read, deadline = bytearray(), runtime.monotonic() + _ANSWER_SECONDS
    while len(read) < _MOST_BYTES and (piece := answer.read1(65_536)):
        read += piece
        if runtime.monotonic() > deadline:
            raise ValueError(f"its answer does not end within {_ANSWER_SECONDS:g} s")
    try:
        said = json.loads(read)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _refusals(errors: object) -> Iterator[str]:
    for one in errors[:_MOST_SHOWN] if isinstance(errors, list) else ():
        title = at(one, "title") or at(one, "meta", "title")
        name = f"{_text(title)!r} " if title else ""
        yield f"{_text(at(one, 'type'))} {name}({_text(at(one, 'id'))}): {_reason(at(one, 'error'))}"


def _reason(error: object) -> str:
    references = at(error, "references")
    if isinstance(references, list) and references:
        named = ", ".join(_text(one.get("id")) for one in references[:5] if isinstance(one, dict))
        return f"it refers to {named}, which is not there"
    words = (at(error, name) for name in ("type", "message"))
    return " ".join(_text(word) for word in words if word) or "no reason given"


def _text(value: object) -> str:
    return cut(value if isinstance(value, str) else "?", _SHOWN)


def _explained(error: Exception) -> str:
    text = str(error).rpartition("): ")[2] if isinstance(error, HTTPError) else str(error)
    short = cut(text or type(error).__name__, _SHOWN)
    if isinstance(error, NewConnectionError) and not isinstance(error, NameResolutionError):
        return "it refuses connections, or no Kibana runs there (it usually has port 5601)"
    if isinstance(error, SSLError):
        return f"TLS fails: {short}; give its certificate authority with --ca-cert FILE, or http://"
    return short


_FILE: Final = "kibana/site_spider.ndjson"
_INDICES: Final = {
    "site-spider-results": "SITE_RESULTS_INDEX",
    "site-spider-items": "SITE_ITEMS_INDEX",
    "site-spider-statistics": "SITE_STATS_INDEX",
}
_SPACE: Final = re.compile(r"[a-z0-9_-]{1,200}")


class Command(SiteCommand):
    """Replaces what an earlier import has left; other objects stay as they are."""

    max_arguments = 1
    usage = "import --url URL [options]"
    summary = "Send the data views and dashboards to a Kibana"
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

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--url", metavar="URL", help="address of Kibana, such as http://127.0.0.1:5601")
        said = "an encoded API key, or @FILE to read it from a file"
        parser.add_argument("--api-key", metavar="K", help=said)
        parser.add_argument("--user", metavar="NAME:PASSWORD", help="in place of an API key; or @FILE")
        parser.add_argument("--space", metavar="S", help="identifier of a space (default: the default space)")
        said = "certificate authority of Kibana's certificate, PEM"
        parser.add_argument("--ca-cert", metavar="FILE", type="file", help=said)

    def work(self, opts: argparse.Namespace) -> None:
        if opts.args != ["import"]:
            self.refuse(f"unknown verb {opts.args[0]!r}: say import" if opts.args else "say import")
        kibana = self._kibana(opts)
        lines = resource(_FILE).read_text(encoding="utf-8").splitlines()
        objects = [self._with_index(line) for line in lines]
        imported, refusals = kibana.send("".join(f"{line}\n" for line in objects).encode())
        for refusal in refusals:
            self.complain(refusal)
        show(f"imported {imported} of {len(objects) - 1} objects")
        if refusals or not imported:
            self.exitcode = EXIT_FAILED
            return
        for one in map(json.loads, objects):
            if one.get("type") == "dashboard":
                show(f"{one['attributes']['title']}: {kibana.link(one['id'])}")

    def _kibana(self, opts: argparse.Namespace) -> Kibana:
        if not opts.url:
            self.refuse("--url is missing: give the address of Kibana, such as http://127.0.0.1:5601")
        address, login = self._address(opts.url)
        key, user = _secret("--api-key", opts.api_key), _secret("--user", opts.user) or login
        if key and not key.isascii():
            self.refuse("--api-key has characters that no API key has")
        secrets = {key or "", *([user, user.partition(":")[2], _encoded(user)] if user else ())}
        self._redaction = Redaction(secrets_of(self.options) | secrets)
        if key and user:
            self.refuse("--api-key and a user are two ways to log in: give one of them")
        if user and ":" not in user:
            self.refuse("--user must be NAME:PASSWORD")
        if opts.space is not None and not _SPACE.fullmatch(opts.space):
            self.refuse(f"--space is {opts.space!r}, but an identifier has letters a to z, digits, _ and -")
        if opts.ca_cert is not None and not Path(opts.ca_cert).is_file():
            raise ConfigError(f"--ca-cert is {opts.ca_cert!r}, which is no file.")
        login = f"ApiKey {key}" if key else f"Basic {_encoded(user)}" if user else ""
        return Kibana(address, opts.space, {"Authorization": login} if login else {}, opts.ca_cert)

    def _address(self, url: str) -> tuple[str, str]:
        """Without name and password, and these."""
        try:
            parts = urlsplit(url)
            is_good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            is_good = False
        if not is_good or parts.query or parts.fragment or not url.isascii() or re.search(r"[\s\\]", url):
            self.refuse("--url must be http://host:port or https://host:port, with a path if Kibana has one")
        login, _, host = parts.netloc.rpartition("@")
        return f"{parts.scheme}://{host}{parts.path.rstrip('/')}", unquote(login)

    def _with_index(self, line: str) -> str:
        """A line of the file, with the index of the settings where it is a data view."""
        one: dict[str, Any] = json.loads(line)
        setting = _INDICES.get(one["id"]) if one.get("type") == "index-pattern" else None
        if setting is None:
            return line
        title = f"{options.text(self.options, setting, required=True)}*"
        if one["attributes"]["title"] == title:
            return line
        one["attributes"]["title"] = title
        return json.dumps(one, ensure_ascii=False, separators=(",", ":"))


def _secret(option: str, value: str | None) -> str | None:
    """What is given, or stands in its file. Raises ConfigError."""
    if value is not None and value.startswith("@"):
        try:
            with Path(value[1:]).open(encoding="utf-8") as file:
                value = file.read(10_000).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{option} is {value!r}, which cannot be read: {error}") from None
    if value is not None and not (value and value.isprintable()):
        raise ConfigError(f"{option} is empty or has characters that cannot be sent.")
    return value


def _encoded(user: str) -> str:
    return base64.b64encode(user.encode()).decode()
