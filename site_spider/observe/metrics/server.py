"""Metrics as text, in Prometheus' format or OpenMetrics, of one process or of all of a host.

Pure: documents in, bytes out. It takes some 20 ms for a process, so the event loop is no place for it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import accumulate
from typing import Any, ClassVar, Final, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST as PLAIN_TYPE
from prometheus_client.exposition import generate_latest as plain
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPEN_TYPE
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.registry import Collector

from site_spider import runtime
from site_spider.observe.metrics.catalogue import (
    METRICS,
    MOST_SINKS,
    OF_A_HOST,
    OWN,
    Document,
    Metric,
    at,
    label,
    number_at,
)

Buckets = list[tuple[str, float] | tuple[str, float, Exemplar]]


class Form(NamedTuple):
    """How metrics are written."""

    content_type: str
    write: Callable[..., bytes]


PLAIN: Final = Form(PLAIN_TYPE, plain)
OPENMETRICS: Final = Form(OPEN_TYPE, openmetrics)


def form_for(accept: str) -> Form:
    """By the Accept header of a request."""
    asked = [part.split(";")[0].strip() for part in accept.lower().split(",")]
    return OPENMETRICS if "application/openmetrics-text" in asked else PLAIN


def exposition(snapshots: Sequence[Document], form: Form = PLAIN, *, of_host: bool = False) -> bytes:
    """All metrics of these processes; `of_host` says that they are all that answer on this host."""
    return form.write(_Snapshots(_told_apart(snapshots), of_host=of_host))


def _told_apart(snapshots: Sequence[Document]) -> dict[tuple[str, str], Document]:
    """By group and slot. Where two have the same, the later one gets another: no series comes twice."""
    found: dict[tuple[str, str], Document] = {}
    for snapshot in snapshots:
        if not isinstance(snapshot, Mapping):
            continue
        group, slot = label(snapshot.get("group", "")), label(at(snapshot, OWN, "slot") or "1")
        names = (slot if not again else f"{slot}+{again}" for again in range(len(snapshots)))
        found[next((group, name) for name in names if (group, name) not in found)] = snapshot
    return found


class _Snapshots(Collector):
    """What prometheus_client asks for families."""

    def __init__(self, documents: Mapping[tuple[str, str], Document], *, of_host: bool) -> None:
        self._documents = documents
        self._of_host = of_host

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            if metric.common != OF_A_HOST:
                family = self._family(metric)
            elif self._of_host:
                family = self._family_of_host(metric)
            else:
                continue
            if family.samples:
                yield family

    def _family(self, metric: Metric) -> Family:
        made = _new(metric)
        for place, document in self._documents.items():
            if isinstance(made, HistogramMetricFamily):
                for labels, measured in _measured(metric, document):
                    _add_histogram(made, metric, (*place, *labels), measured)
            else:
                for labels, value in metric.read(document):
                    made.add_metric((*place, *labels), value)
        return made

    def _family_of_host(self, metric: Metric) -> Family:
        made = _new(metric)
        assert isinstance(made, GaugeMetricFamily)
        told: dict[str, list[float]] = {}
        for (group, _), document in self._documents.items():
            told.setdefault(group, []).append(number_at(document, OWN, "processes") or 1.0)
        for group, processes in told.items():
            answering = float(len(processes))
            is_expected = metric.name == "processes_expected"
            made.add_metric((group,), max(*processes, answering) if is_expected else answering)
        return made


def _new(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily:
    labels = (*metric.common, *metric.labels)
    if metric.kind == "counter":
        return CounterMetricFamily(metric.family, metric.meaning, labels=labels)
    if metric.kind == "gauge":
        return GaugeMetricFamily(metric.family, metric.meaning, labels=labels)
    return HistogramMetricFamily(metric.family, metric.meaning, labels=labels)


# --- histograms -----------------------------------------------------------------------------------


def _measured(metric: Metric, document: Document) -> Iterator[tuple[tuple[str, ...], Any]]:
    found = at(document, OWN, "histograms", metric.name)
    if not isinstance(found, Mapping):
        return
    if not metric.labels:
        yield (), found
    else:
        for count, (name, measured) in enumerate(found.items()):
            if count < MOST_SINKS:
                yield (label(name),), measured


def _add_histogram(
    family: HistogramMetricFamily, metric: Metric, labels: Sequence[str], measured: object
) -> None:
    bounds, counts = at(measured, "bounds"), at(measured, "counts")
    total = number_at(measured, "sum")
    if not (_are_numbers(bounds) and _are_numbers(counts) and total is not None):
        return
    if len(counts) == len(bounds) + 1:
        exemplars = at(measured, "exemplars")
        family.add_metric(labels, _buckets(metric.bounds, bounds, counts, exemplars), total)


def _are_numbers(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, int | float) for value in values)


def _buckets(
    exported: Iterable[float], bounds: Sequence[float], counts: Sequence[float], exemplars: object
) -> Buckets:
    """Summed up to each exported bound. A bucket's exemplar is the last one that was measured in it."""
    wanted = {float(bound) for bound in exported}
    found: Buckets = []
    exemplar: Exemplar | None = None
    given = exemplars if isinstance(exemplars, list) else []
    for index, (bound, count) in enumerate(zip((*bounds, float("inf")), accumulate(counts), strict=True)):
        exemplar = _exemplar(given[index] if index < len(given) else None) or exemplar
        if bound in wanted or bound == float("inf"):
            name = "+Inf" if bound == float("inf") else repr(float(bound))
            found.append((name, count) if exemplar is None else (name, count, exemplar))
            exemplar = None
    return found


def _exemplar(given: object) -> Exemplar | None:
    if isinstance(given, list) and len(given) == 2 and isinstance(given[1], int | float):
        return Exemplar({"seed": label(given[0])}, float(given[1]))
    return None


# --- http server -----------------------------------------------------------------------------------------
# A small HTTP server in threads of its own, which answers GET while the event loop is blocked.
#
# Whoever connects costs little, whatever it sends: a few connections at a time, a few seconds for each, the
# bounds of http.server for lines and headers, no body, one request for each connection.


logger = logging.getLogger(__name__)

_MOST_CONNECTIONS = 8
_SILENCE_SECONDS = 5.0
_LONGEST_SECONDS = 20.0  # of a connection, however it trickles


class Reply(NamedTuple):
    """What is sent."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[str], Reply]  # of the Accept header


class RouteServer:
    """Serves some paths from the moment it is made. Raises OSError when it cannot listen."""

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        self._server = _BoundedServer(host, port, routes)
        self._thread = runtime.Thread(target=self._server.serve_forever, name="site-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _BoundedServer(HTTPServer):
    request_queue_size = 16

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.routes = routes
        self._places = runtime.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__((host, port), _MetricsHandler)

    def server_bind(self) -> None:
        # as HTTPServer's, without asking a name server who we are
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, if there is a place."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        work = runtime.Thread(
            target=self._process, args=(request, client_address), name="site-metrics-answer", daemon=True
        )
        try:
            work.start()
        except RuntimeError:  # no more threads
            self._places.release()
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as its base
        """Say so; the base would print it."""
        logger.exception("A question about metrics could not be answered")

    def _process(self, request: socket.socket, client_address: Any) -> None:
        end = runtime.Timer(_LONGEST_SECONDS, _break, (request,))
        end.name, end.daemon = "site-metrics-end", True
        end.start()
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # whoever asked has gone, or is too slow
        except Exception:
            logger.exception("A question about metrics could not be answered")
        finally:
            end.cancel()
            self.shutdown_request(request)
            self._places.release()


def _break(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _MetricsHandler(BaseHTTPRequestHandler):
    timeout = _SILENCE_SECONDS
    server_version = "site_spider"
    sys_version = ""
    server: _BoundedServer
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = "text/plain; charset=utf-8"
    _wants_body: ClassVar[bool] = True

    def parse_request(self) -> bool:
        """As its base; nothing but GET passes."""
        if not super().parse_request():
            return False
        if self.command != "GET":
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is answered here")
            return False
        return True

    def do_GET(self) -> None:
        """Answer one of the routes."""
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            found = ", ".join(sorted(self.server.routes))
            reply = Reply(HTTPStatus.NOT_FOUND, f"here are {found}\n".encode())
        else:
            reply = route(self.headers.get("Accept", ""))
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, *_of_what: object) -> None:
        """Nothing: a scrape is no event."""
