"""URLs: which may be fetched, their canonical form, url_id, host and site.

Every host is compared in one spelling: lower case, IDN in punycode (as browsers map it,
UTS 46), IPv6 compressed and without brackets, no port and no final dot.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final, NamedTuple

import idna
from w3lib.url import canonicalize_url

from site_spider.errors import SeedError
from site_spider.text import refused, shown

if TYPE_CHECKING:
    from tldextract import TLDExtract


MAX_URL_BYTES = 8192
MAX_HOST_CHARACTERS = 253
MAX_LABEL_CHARACTERS = 63  # no label gets shorter in ASCII
MAX_PORT = 65535
SCOPES = ("host", "domain", "any")

USUAL_PORT = r"(?::(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}))?"  # up to 59999, without a zero in front
_HOST = r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*"  # not *+, with which Python 3.11.2 takes a dot at the end
# What nearly every URL looks like; whatever matches needs no further look, except at its lengths.
_PLAIN = re.compile(rf"https?://({_HOST}){USUAL_PORT}(?:[/?#][!-~]*)?", re.ASCII)
# What w3lib changes in nothing but the order of the query: done here at a fraction of its time.
_SIMPLE = re.compile(
    rf"(https?://[a-z0-9_.-]+{USUAL_PORT}(?:(?:/[a-zA-Z0-9_~-][a-zA-Z0-9_~.-]*+)++/?+|/))"
    r"(?:\?([a-zA-Z0-9_.~-]++=[a-zA-Z0-9_.~-]*+(?:&[a-zA-Z0-9_.~-]++=[a-zA-Z0-9_.~-]*+)*+))?"
)
_USUAL_HOST = re.compile(rf"https?://({_HOST})(?::[0-9]{{1,5}})?(?:[/?#]|\Z)", re.ASCII)
_AUTHORITY = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):(?://([^/?#]*))?")
_HOST_NAME = re.compile(rf"{_HOST}\.?")
_HOST_PORT = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::(.*))?", re.DOTALL)
_LABEL_ENDS = re.compile("[.\u3002\uff0e\uff61]")
_PORT = re.compile(r"[0-9]{1,5}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def canonical_url(url: str) -> str:
    """The one spelling of a URL that stands for all equal ones: sorted query, no fragment.

    Raises ValueError for some URLs that `check_url` refuses.
    """
    simple = _SIMPLE.fullmatch(url)
    if simple:
        return f"{simple[1]}?{_sorted_query(simple[2])}" if simple[2] else url
    if not url.isascii():
        try:
            url = check_url(url)  # w3lib maps IDN by the rules of 2003, which can give another host
        except SeedError as error:
            raise ValueError(error.reason) from None
    return canonicalize_url(url)


def url_id(url: str, task_id: str | None = None) -> str:
    """The default `_id` of a document: BLAKE2b-160 of the canonical URL, 40 hexadecimal digits.

    Of a task's document the line of the task_id comes first: `printf %s URL | b2sum -l 160` and
    `printf '%s\\n%s' TASK URL | b2sum -l 160` say the same. Raises ValueError as `canonical_url` does.
    """
    named = canonical_url(url) if task_id is None else f"{task_id}\n{canonical_url(url)}"
    return hashlib.blake2b(named.encode("utf-8", "replace"), digest_size=20).hexdigest()


def check_url(url: object) -> str:
    """The URL to fetch: scheme and host in lower case, IDN in punycode, the rest as given.

    Raises SeedError when it cannot or must not be fetched.
    """
    if not isinstance(url, str):
        raise refused("url", f"{shown(url)}, but must be a string")
    plain = _PLAIN.fullmatch(url)
    if plain and len(url) <= MAX_URL_BYTES and len(plain[1]) <= MAX_HOST_CHARACTERS:
        return url
    _check_characters(url)
    return _check_parts(url)


def host_of(url: object) -> str:
    """The host in its one spelling, without port; empty when there is none. Never raises."""
    if not isinstance(url, str):
        return ""
    usual = _USUAL_HOST.match(url)
    return usual[1] if usual and len(usual[1]) <= MAX_HOST_CHARACTERS else _unusual_host(url)


def _unusual_host(url: str) -> str:
    found = _AUTHORITY.match(url)
    if not found or not found[2] or "\\" in found[2]:  # readers differ on which side of a backslash the host is
        return ""
    address = _HOST_PORT.fullmatch(found[2].rpartition("@")[2])
    if not address:
        return ""
    if _HOST_NAME.fullmatch(address[1]) and len(address[1]) <= MAX_HOST_CHARACTERS:
        return address[1].removesuffix(".")
    try:
        return _host(address[1]).strip("[]").removesuffix(".")
    except SeedError:
        return ""


def beginnings_of(host: str) -> list[str]:
    """What the URLs of a host begin with, but for those that end behind it."""
    name = f"[{host}]" if ":" in host else host
    return [f"{scheme}://{name}{sign}" for scheme in ("http", "https") for sign in "/:?#"]


@lru_cache(maxsize=4096)
def site_of(host: str) -> str:
    """The registrable domain of a host (as `host_of` gives it), by the public suffix list.

    Private suffixes count: two users of github.io are two sites. IP addresses, single
    labels and public suffixes are their own site; an unknown suffix is one label long.
    """
    labels = host.split(".")
    if len(labels) < 2 or ":" in host or _NUMBER.fullmatch(labels[-1]):
        return host
    found = _suffixes()(host)
    if not found.suffix:
        return ".".join(labels[-2:])
    return f"{found.domain}.{found.suffix}" if found.domain else host


def same_scope(scope: str, seed_host: str, host: str) -> bool:
    """Whether links to `host` belong to a seed of `seed_host`; `scope` is host, domain or any.

    Raises ValueError for another scope.
    """
    if scope not in SCOPES:
        raise ValueError(f"scope is {scope!r}, but must be one of: {', '.join(SCOPES)}")
    if scope == "any":
        return True
    if not seed_host or not host:
        return False
    return host == seed_host or (scope == "domain" and site_of(host) == site_of(seed_host))


def in_scope(scope: str, seed_host: str, urls: Iterable[str]) -> list[str]:
    """Those of the URLs that belong to a seed of `seed_host`; each host is looked at once."""
    known: dict[str, bool] = {}
    found = []
    for url in urls:
        end = url.find("/", 8)  # behind the host, or later: so what is before it tells the host
        place = url if end < 0 else url[:end]
        if place not in known:
            known[place] = same_scope(scope, seed_host, host_of(url))
        if known[place]:
            found.append(url)
    return found


def _sorted_query(query: str) -> str:
    if "&" not in query:
        return query
    return "&".join(map("=".join, sorted(pair.split("=") for pair in query.split("&"))))


def is_public_suffix(domain: str) -> bool:
    """Whether a domain is one below which anybody may register, such as com or co.uk."""
    return not _suffixes()(domain).domain


@cache
def _suffixes() -> TLDExtract:
    """The public suffix list that comes with tldextract: never the network, never a cache on disk."""
    from tldextract import TLDExtract  # noqa: PLC0415 - 0.2 s, and only scope "domain" needs it

    return TLDExtract(suffix_list_urls=(), cache_dir=None, include_psl_private_domains=True)


def _check_characters(url: str) -> None:
    if not url.strip():
        raise refused("url", "empty")
    if len(url) > MAX_URL_BYTES or len(url.encode("utf-8", "surrogatepass")) > MAX_URL_BYTES:
        raise refused("url", f"longer than {MAX_URL_BYTES} bytes: {shown(url)}")
    if url != url.strip():
        raise refused("url", f"{shown(url)} begins or ends with white space")
    if _CONTROL.search(url):
        raise refused("url", f"{shown(url)} holds a control character")
    if " " in url:
        raise refused("url", f"{shown(url)} holds a space; write %20")
    if _SURROGATE.search(url):
        raise refused("url", f"{shown(url)} holds a lone surrogate, which is not a character")


def _check_parts(url: str) -> str:
    """The URL with scheme and host in their one spelling. Raises SeedError."""
    found = _AUTHORITY.match(url)
    if not found:
        raise refused("url", f"{shown(url)} has no scheme; write http://host/path")
    scheme, authority = found[1].lower(), found[2]
    if scheme not in ("http", "https"):
        raise refused("url", f"scheme {shown(scheme)} is not allowed; use http or https")
    if not authority:
        raise refused("url", f"{shown(url)} has no host")
    return f"{scheme}://{_check_authority(authority)}{url[found.end() :]}"


def _check_authority(authority: str) -> str:
    """Host and port in their one spelling. Raises SeedError."""
    if "\\" in authority:
        raise refused("url", f"a backslash in the host part {shown(authority)}")
    if "@" in authority:
        # Not shown: the reason would carry the password on into headers and logs.
        raise refused("url", "user name or password before the host; use an Authorization header")
    parts = _HOST_PORT.fullmatch(authority)
    if not parts:
        raise refused("url", f"host part {shown(authority)} is not valid")
    host, port = _host(parts[1]), parts[2]
    if port is None:
        return host
    if not _PORT.fullmatch(port) or not 0 < int(port) <= MAX_PORT:
        raise refused("url", f"port {shown(port)} is not a number from 1 to {MAX_PORT}")
    return f"{host}:{port}"


def _host(host: str) -> str:
    """A host in its one spelling, but with brackets and final dot. Raises SeedError."""
    if not host:
        raise refused("url", "no host")
    if host.startswith("["):
        return f"[{_ipv6(host[1:-1])}]"
    if len(host) > MAX_HOST_CHARACTERS:
        raise refused("url", f"host {shown(host)} is longer than {MAX_HOST_CHARACTERS} characters")
    name = host.lower() if host.isascii() else _punycode(host)
    if not _HOST_NAME.fullmatch(name) or len(name) > MAX_HOST_CHARACTERS:
        raise refused("url", f"host {shown(host)} is not a valid name")
    return name


def _ipv6(address: str) -> str:
    try:
        parsed = IPv6Address(address)
    except ValueError:
        raise refused("url", f"{shown(address)} is not an IPv6 address") from None
    if parsed.scope_id is not None:
        raise refused("url", f"IPv6 address {shown(address)} names a network interface")
    return parsed.compressed


@lru_cache(maxsize=1024)
def _punycode(host: str) -> str:
    """An international host name in ASCII. Raises SeedError."""
    for spelled in (_spelled_now, _spelled_by_older_rules):
        try:
            return spelled(host)
        except UnicodeError:  # idna.IDNAError is one
            pass
    raise refused("url", f"host {shown(host)} is not a valid international name")


def _spelled_now(host: str) -> str:
    mapped = idna.uts46_remap(host, std3_rules=False)
    return idna.encode(_with_short_labels(mapped)).decode()


def _spelled_by_older_rules(host: str) -> str:
    """These know emoji, which browsers still take."""
    return _with_short_labels(host).encode("idna").decode().lower()


def _with_short_labels(host: str) -> str:
    """The host itself. Raises UnicodeError for labels too long to be spelled: trying that is quadratic."""
    if any(len(label) > MAX_LABEL_CHARACTERS for label in _LABEL_ENDS.split(host)):
        raise UnicodeError("a label is too long")
    return host


# --- plain url: what there is to know of a URL in its usual form, without parsing it --------------------

_USUAL = re.compile(r"https?://([a-z0-9._-]+)(?::[0-9]+)?(/[^;?#]*(?:\?[^#]+)?)")
_SAFE = re.compile(rf"https?://[a-z0-9_-]+(?:\.[a-z0-9_-]+)*{USUAL_PORT}/[A-Za-z0-9/_.~-]*(?:\?[A-Za-z0-9_.~&=-]+)?")


class PlainUrl(NamedTuple):
    """What `urlparse` says of it too."""

    host: str  # its `hostname`
    target: str  # path and query, as they stand


@lru_cache(maxsize=512)
def plain_url(url: str) -> PlainUrl | None:
    """None for a URL of another form: with a user, a fragment, parameters, capitals in the host, ..."""
    found = _USUAL.fullmatch(url)
    return None if found is None else PlainUrl(found[1], found[2])


def is_safe(url: str) -> bool:
    """Whether it is sure that Request leaves a URL as it is, in the encoding UTF-8."""
    return _SAFE.fullmatch(url) is not None


# --- fingerprint: the fingerprint of a page, for a plain GET of a URL -----------------------------------
# The same bytes as those of Scrapy's own fingerprinter for such a request, so that both can be mixed, at a
# fraction of its time: no Request is needed, and links repeat, so the last ones are kept. Within a scope,
# such as a task, the same page has a fingerprint of its own.

_KEPT = 16_384  # fingerprints by URL: about 5 MB


@lru_cache(maxsize=_KEPT)
def page_fingerprint(url: str, scope: str | None = None, form: UrlForm | None = None) -> bytes:
    """The fingerprint of a GET of `url` without a body. Raises ValueError as `canonical_url` does.

    With a form it is that of the URL which this one is compared as: most URLs keep theirs.
    """
    compared = canonical_url(url) if form is None else form.of(canonical_url(url))
    described = f'{{"body": "", "headers": {{}}, "method": "GET", "url": {json.dumps(compared)}}}'
    found = hashlib.sha1(described.encode(), usedforsecurity=False).digest()
    return found if scope is None else scoped(found, scope)


def scoped(fingerprint: bytes, scope: str | None) -> bytes:
    """The fingerprint within a scope; itself without one, so that those of earlier versions still hold."""
    if scope is None:
        return fingerprint
    prefix = scope.encode("utf-8", "replace")
    return hashlib.sha1(b"%b\n%b" % (prefix, fingerprint), usedforsecurity=False).digest()


# --- form: what links are compared as: their canonical URL without what tells no two pages apart --------
# Left out are parameters of trackers, session ids, and the name of an index page. A URL is never fetched, nor
# stored, in this form.

TRACKING, NONE = "tracking", "none"  # words in a list of parameters
LONGEST_NAME, MOST_NAMES = 100, 200

_TRACKERS: Final = (
    "utm_*", "mtm_*", "matomo_*", "piwik_*", "hsa_*", "vero_*", "pk_campaign", "pk_kwd", "pk_source",
    "pk_medium", "pk_content", "gclid", "gclsrc", "gbraid", "wbraid", "gad_source", "gad_campaignid", "dclid",
    "fbclid", "fb_action_ids", "fb_action_types", "msclkid", "yclid", "ysclid", "twclid", "ttclid",
    "li_fat_id", "igshid", "igsh", "mc_cid", "mc_eid", "mkt_tok", "oly_anon_id", "oly_enc_id", "s_kwcid",
    "ef_id", "wickedid", "rb_clickid", "_openstat", "_ga", "_gl", "_hsenc", "_hsmi", "srsltid", "epik",
    "zanpid", "irclickid",
)  # fmt: skip
_SESSIONS: Final = ("jsessionid", "phpsessid", "sessid", "aspsessionid*", "cftoken", "zenid", "oscsid")
_IN_PATH = re.compile(r";(?:jsessionid|phpsessid|sessionid|sid)=[^/;]*|/\(S\([0-9a-z]{8,64}\)\)(?=/|$)", re.IGNORECASE)
_INDEX = (
    "/index.html", "/index.htm", "/index.php", "/index.jsp", "/index.asp", "/index.aspx", "/default.html",
    "/default.htm", "/default.asp", "/default.aspx",
)  # fmt: skip
_PARAMETER = re.compile(rf"[!-~]{{1,{LONGEST_NAME}}}")


class UrlForm:
    """Of canonical URLs. Two that leave out the same parameters are one object: see `form_of`."""

    def __init__(self, names: Sequence[str]) -> None:
        dropped = [name for name in names if name != TRACKING]
        dropped += [*_SESSIONS, *(_TRACKERS if TRACKING in names else ())]
        self._names = frozenset(name for name in dropped if not name.endswith("*"))
        self._beginnings = tuple(name[:-1] for name in dropped if name.endswith("*"))

    def of(self, url: str) -> str:
        """What a canonical URL is compared as; most are their own form."""
        path, mark, query = url.partition("?")
        if ";" in path or "(" in path:
            path = _IN_PATH.sub("", path)
        if path.endswith(_INDEX):
            path = path[: path.rfind("/") + 1]
        if not mark:
            return path
        kept = "&".join(pair for pair in query.split("&") if not self.drops(pair.partition("=")[0]))
        return f"{path}?{kept}" if kept else path

    def drops(self, name: str) -> bool:
        """Whether a parameter is left out."""
        name = name.lower()
        return name in self._names or name.startswith(self._beginnings)


def form_of(names: Sequence[str]) -> UrlForm | None:
    """With these parameters left out, `tracking` among them, or none at all. Raises ValueError."""
    if len(names) > MOST_NAMES:
        raise ValueError(f"has {len(names)} names, but at most {MOST_NAMES} are taken")
    names = tuple(sorted({name.lower() for name in names}))
    for name in names:
        if not _PARAMETER.fullmatch(name) or name.strip("*") == "" or "*" in name[:-1]:
            raise ValueError(f"{name[:LONGEST_NAME]!r} is no name of a parameter; a star may stand at its end")
    if NONE in names and len(names) > 1:
        raise ValueError(f"says {NONE} beside other names")
    return None if not names or NONE in names else _form(names)


_form = lru_cache(maxsize=1_000)(UrlForm)


# --- pattern: one of many URLs that a program makes ------------------------------------------------------

_LONGEST_PATTERN = 300  # characters
_HEX = re.compile(  # UUIDs, and numbers that are no words and no decimals
    r"(?<![0-9a-z])(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,})"
    r"(?![0-9a-z])",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"[0-9]+")


def pattern_of(url: str) -> str | None:
    """Host, path and query without numbers; None of one without any."""
    host, slash, rest = url.partition("://")[2].partition("/")
    rest = rest[:_LONGEST_PATTERN]
    found = without_numbers(rest)
    return f"{host}{slash}{found}" if found != rest else None


def without_numbers(text: str) -> str:
    """With N for digits and H for long hexadecimal numbers."""
    return _DIGITS.sub("N", _HEX.sub("H", text))
