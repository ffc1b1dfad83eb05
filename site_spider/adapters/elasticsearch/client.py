"""Connections with bounds, and what answers and errors say."""

from __future__ import annotations

import logging
import reprlib
import warnings
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from socket import SHUT_RDWR, socket
from types import SimpleNamespace
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

from elastic_transport import ConnectionError as NotConnected
from elastic_transport import NodeConfig, Urllib3HttpNode
from elasticsearch import ApiError, Elasticsearch, ElasticsearchWarning, TransportError, UnsupportedProductError

from site_spider import runtime
from site_spider.adapters.files import ReplacedFiles, is_late
from site_spider.bounded import LogLimit
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.options import SettingsView, mapping, names, text
from site_spider.outage import Outage
from site_spider.redaction import without_secrets
from site_spider.text import cut, escaped

logger = logging.getLogger(__name__)

SHARD_SECONDS = 1.0  # within which a new index has its shard
_PIECE_BYTES = 1_000_000


class AnswerTooLarge(Exception):
    """The server sends more than an answer can have."""


class BoundedNode(Urllib3HttpNode):
    """The client's own node, but answers are bounded, and its certificates may be replaced.

    The client's own reads them for each connection, also half of a pair. Here they are read when the node is made.
    """

    most_bytes = 4_000_000  # of an answer, unpacked: to a bulk request of 500 records, 8 KB for why each was refused

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self._files = ReplacedFiles((config.ca_certs, config.client_cert, config.client_key))
        self._old = Outage(
            logger,
            "New certificates of SITE_ELASTICSEARCH_OPTIONS cannot be used, so those before stay",
            "The certificates of SITE_ELASTICSEARCH_OPTIONS can be used",
        )
        if config.scheme == "https":
            _read_certificates(self.pool, config)
        self._connections: WeakSet[Any] = WeakSet()
        self.pool.ConnectionCls = partial(self._connection, self.pool.ConnectionCls)
        # as much of a pool as the node uses
        self.pool: Any = SimpleNamespace(urlopen=partial(_bounded, self.pool, self.most_bytes), close=self.pool.close)

    def perform_request(self, *arguments: Any, **options: Any) -> Any:
        if is_late():  # also with the next host, which is not at fault: the client would not ask it for a while
            raise TransportError("there is no time left for this request")
        if self._files.have_changed() and (answer := self._answered_anew(*arguments, **options)) is not None:
            return answer
        return super().perform_request(*arguments, **options)

    def _answered_anew(self, *arguments: Any, **options: Any) -> Any:
        """Ask again with the new certificates, and keep them; None where they are not accepted, or not whole."""
        try:
            fresh = type(self)(self.config)
            answer = fresh.perform_request(*arguments, **options)
        except (OSError, ValueError, NotConnected) as error:
            self._old.goes_on(error)
            return None
        self._files.use()
        self._old.is_over()
        self.pool, self._connections = fresh.pool, fresh._connections
        logger.info("Connections to %s use the certificates that were replaced.", self.base_url)
        return answer

    def close(self) -> None:
        """Whoever waits for the server in another thread stops waiting, with an error."""
        super().close()
        for connection in [*self._connections]:
            with suppress(OSError, TypeError):  # it is closed, or not connected
                socket.shutdown(connection.sock, SHUT_RDWR)

    def _connection(self, kind: type[Any], **how: Any) -> Any:
        made = kind(**how)
        self._connections.add(made)
        return made


class PageNode(BoundedNode):
    """For documents that are read back."""

    most_bytes = 128_000_000


def _read_certificates(pool: Any, config: NodeConfig) -> None:
    context = pool.conn_kw["ssl_context"]
    if pool.ca_certs:
        with _naming_files(ca_certs=pool.ca_certs):
            context.load_verify_locations(**{"capath" if Path(pool.ca_certs).is_dir() else "cafile": pool.ca_certs})
    if config.client_cert:
        with _naming_files(client_cert=config.client_cert, client_key=config.client_key):
            context.load_cert_chain(config.client_cert, config.client_key)
    pool.ca_certs = pool.cert_file = pool.key_file = None


@contextmanager
def _naming_files(**files: object) -> Iterator[None]:
    """OpenSSL says what is wrong with a file, but not with which."""
    try:
        yield
    except OSError as error:
        named = ", ".join(f"{option} {path}" for option, path in files.items() if path)
        raise OSError(f"{named}: {error.strerror or error}") from None


def _bounded(pool: Any, most_bytes: int, method: str, target: str, **options: Any) -> Any:
    """Read as much of a response as the node uses. Raises AnswerTooLarge, TimeoutError.

    The timeout holds for all of it: the pool's own begins anew with each piece.
    """
    seconds = options.get("timeout", pool.timeout.total)
    deadline = inf if seconds is None else runtime.monotonic() + seconds
    response = pool.urlopen(method, target, preload_content=False, **options)
    try:
        data = _read(response, most_bytes, deadline)
    except BaseException:
        response.close()
        raise
    finally:
        response.release_conn()  # else the pool, which has few, waits for this one for ever
    return SimpleNamespace(status=response.status, headers=response.headers, data=data)


def _read(response: Any, most_bytes: int, deadline: float) -> bytes:
    read = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        read += piece
        if runtime.monotonic() > deadline:
            raise TimeoutError("the answer was not complete in time")
        if len(read) > most_bytes:
            raise AnswerTooLarge(f"the answer has more than {most_bytes} bytes")
    return bytes(read)


# --- options: reads from the settings how to reach Elasticsearch -----------------------------------------

HOSTS = "SITE_ELASTICSEARCH_HOSTS"
OPTIONS = "SITE_ELASTICSEARCH_OPTIONS"
REQUEST_TIMEOUT_SECONDS = 30.0
_INDICES = ("SITE_RESULTS_INDEX", "SITE_ITEMS_INDEX", "SITE_STATS_INDEX")


@dataclass(frozen=True, slots=True)
class ElasticsearchOptions:
    """The checked settings; `address` is for people and holds no password."""

    hosts: tuple[str, ...] = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    address: str

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        hosts = names(settings, HOSTS)
        if not hosts:
            raise ConfigError(f"{HOSTS} is empty, but must be set: http://host:9200, or several with commas.")
        address = ",".join(_checked(number, host) for number, host in enumerate(hosts, 1))
        options = {  # JSON has no tuples, which the client wants for basic_auth and api_key
            name: tuple(value) if isinstance(value, list) else value
            for name, value in mapping(settings, OPTIONS).items()
        }
        if "hosts" in options or "cloud_id" in options:
            raise ConfigError(f"{OPTIONS} must not name hosts: set {HOSTS} instead.")
        if not isinstance(options.get("request_timeout"), int | float | None):  # no request of the start uses it
            raise ConfigError(f"{OPTIONS} must have a number of seconds as request_timeout.")
        return cls(tuple(host.rstrip("/") for host in hosts), options, address)

    def client(self, node: type[BoundedNode]) -> Elasticsearch:
        """Make a client, without connecting. Raises ConfigError for options that it does not take.

        One that does not answer is tried again by our own back-off, so the client itself
        only goes on to the next host when a connection fails.
        """
        defaults: dict[str, Any] = {
            "node_class": node,
            "request_timeout": REQUEST_TIMEOUT_SECONDS,
            "max_retries": len(self.hosts) - 1,
            "retry_on_status": (),
            "retry_on_timeout": False,
        }
        _quieten_client()
        options = {**defaults, **self.options}
        if options.pop("sniff_on_start", False):  # asks while the client is made, and waits without end
            options["sniff_before_requests"] = True
        try:
            return Elasticsearch(hosts=list(self.hosts), **options)
        except (TypeError, ValueError, AttributeError, OSError) as error:
            raise self.not_taken(error) from None

    def not_taken(self, error: Exception) -> ConfigError:
        reason = without_secrets(str(error), OPTIONS, self.options)
        return ConfigError(f"{OPTIONS} is not what the client takes: {reason}")

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """What goes wrong with a server is raised as SinkUnavailable."""
        try:
            yield
        except UnsupportedProductError as error:
            raise self.unavailable("that is not Elasticsearch.") from error
        except (ApiError, TransportError, RecursionError, UnexpectedResponse) as error:
            raise self.unavailable(explained(error)) from error

    def unavailable(self, reason: str) -> SinkUnavailable:
        return SinkUnavailable(f"{HOSTS} is {self.address!r}, which does not answer as it should: {reason}")

    def refused(self, reason: str, remedy: str) -> ConfigError:
        """The error to raise when waiting would not help."""
        return ConfigError(f"{HOSTS} is {self.address!r}, which cannot be used: {reason}. Set in {OPTIONS} {remedy}.")


def _quieten_client() -> None:
    """Keep the client from writing a line for every request, and one for each try during an outage.

    A warning that the server sends would be printed raw, and each new one kept for ever.
    """
    warnings.simplefilter("ignore", ElasticsearchWarning)
    for name, level in (("elastic_transport.transport", logging.WARNING), ("elastic_transport", logging.ERROR)):
        client_logger = logging.getLogger(name)
        if client_logger.level == logging.NOTSET:  # else somebody wants to see them
            client_logger.setLevel(level)
    logging.getLogger("elastic_transport.transport").addFilter(_in_one_line)  # once, however often it is added


_retries = LogLimit(1, 60.0)


def _in_one_line(record: logging.LogRecord) -> bool:
    """Drop the traceback that the client logs for each request that it repeats at another host."""
    if not record.exc_info:
        return True
    if _retries.admit(runtime.monotonic()):
        logger.warning("A host of %s fails, so the next one is asked: %s", HOSTS, record.exc_info[1])
    return False


def index_name(settings: SettingsView, setting: str) -> str:
    """The name of an index. Raises ConfigError for one that Elasticsearch would refuse, or that is named twice."""
    name = text(settings, setting, required=True)
    if name != name.lower() or name[0] in "-_+." or any(sign in name for sign in '\\/*?"<>| ,#:'):
        raise ConfigError(
            f"{setting} is {name!r}, but an index has a lower-case name without blanks or any of"
            ' \\/*?"<>|,#: and does not begin with - _ + or a dot.'
        )
    for other in _INDICES:  # an index has the mapping of one kind of documents
        if other != setting and text(settings, other) == name:
            raise ConfigError(f"{setting} and {other} are both {name!r}: name two indices.")
    return name


def _checked(number: int, host: str) -> str:
    """The host without its password. Raises ConfigError, without the host: what is where is not known."""
    try:
        parts = urlsplit(host)
        complete = parts.scheme in ("http", "https") and parts.hostname and parts.port
    except ValueError:
        complete = False
    if not complete:
        raise ConfigError(f"{HOSTS} cannot be used: number {number} must be http://host:port or https://host:port.")
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


# --- Reads Elasticsearch's answers: their parts, and what an error means ---------------------------------
# Another server or a proxy may have answered, so nothing is taken for granted.

K = TypeVar("K")

_SHOWN_CHARACTERS = 200  # of a reason, and of what came instead of an answer
_MOST_CAUSES = 4

_short = reprlib.Repr()
_short.maxlevel, _short.maxdict, _short.maxlist, _short.maxstring, _short.maxother = 3, 3, 2, 80, 80


class UnexpectedResponse(Exception):
    """An answer that says nothing of the records, and what came instead."""

    def __init__(self, what: str, came: object = None) -> None:
        super().__init__(what if came is None else f"{what}: {shown(came)}")


def part(answer: object, name: str, kind: type[K]) -> K:
    """A part of an answer. Raises UnexpectedResponse."""
    value = answer.get(name) if isinstance(answer, Mapping) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UnexpectedResponse(f"the answer has no {name}", answer)
    return value


def within(answer: object, *names: str) -> Mapping[str, Any] | None:
    """The object that stands there in an answer, or else nothing."""
    for name in names:
        answer = answer.get(name) if isinstance(answer, Mapping) else None
    return answer if isinstance(answer, Mapping) else None


def reason_of(status: int, error: object) -> str:
    """What went wrong in one line, with the causes, whatever shape they have."""
    causes: list[str] = []
    while error and len(causes) < _MOST_CAUSES:
        if not isinstance(error, Mapping):
            causes.append(shown(error))
            break
        causes.append(f"{shown(error.get('type'))}: {shown(error.get('reason'))}")
        error = error.get("caused_by")
    login = f" (the login is in {OPTIONS})" if status == 401 or "security_exception" in str(causes) else ""
    return f"HTTP {status} {', caused by '.join(causes)}{login}"


def explained(error: Exception) -> str:
    """An error of the client in one line."""
    if isinstance(error, ApiError):
        return reason_of(error.status_code, words_of(error) or {"type": "proxy?", "reason": error.message})
    # the client drops the error of the network that its own stands for, or of the host before
    cause = error.__cause__ or next(reversed(error.errors), None) if isinstance(error, TransportError) else None
    behind = f" ({shown(str(cause)) if str(cause) else type(cause).__name__})" if cause else ""
    hint = "; is it http://?" if "WRONG_VERSION_NUMBER" in f"{error}{behind}" else ""
    return f"{type(error).__name__}: {shown(str(error))}{behind}{hint}"


def shown(value: object) -> str:
    """A short part of it, in one line that a terminal only shows."""
    text = value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else _short.repr(value)
    return cut(escaped(text), _SHOWN_CHARACTERS)


def words_of(error: ApiError) -> Mapping[str, Any]:
    """Elasticsearch's own description of the error; empty if somebody else answered."""
    return within(error.body, "error") or {}


# --- Documents by their _id ------------------------------------------------------------------------------


def documents(
    client: Elasticsearch, index: str, unread: Container[object], *, waits: bool = True, **what: Any
) -> list[Mapping[str, Any]]:
    """The answers to a multi-get, without what could not be read for an error of a type in `unread`.

    Raises like the client, and UnexpectedResponse.
    """
    answer = client.mget(index=index, **what).body
    docs = answer.get("docs", []) if isinstance(answer, Mapping) else None
    if not isinstance(docs, list):
        raise UnexpectedResponse("the answer to a multi-get is not one", answer)
    found = [doc for doc in docs if isinstance(doc, Mapping)]
    for error in filter(None, (within(doc, "error") for doc in found)):
        if str(error.get("type")) in unread:
            continue
        reason = reason_of(200, error)
        if not waits or "no_shard_available_action_exception" not in reason:  # else its index is new
            raise UnexpectedResponse(f"a document could not be read: {reason}")
        runtime.sleep(SHARD_SECONDS)
        return documents(client, index, unread, waits=False, **what)
    return [doc for doc in found if "error" not in doc]
