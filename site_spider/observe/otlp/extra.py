"""Whether the extra `otel` is installed, and where the receiver is, as OpenTelemetry's own variables say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec

from site_spider.errors import ConfigError

INSTALLS = "'opentelemetry-sdk>=1.45' 'opentelemetry-exporter-otlp-proto-http>=1.45'"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_OF_METRICS = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"


def check_installed(because: str) -> None:
    """Raise ConfigError without the extra; `because` says who asks for it."""
    try:
        found = find_spec("opentelemetry.exporter.otlp.proto.http")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError(f"{because}, which needs OpenTelemetry: pip install {INSTALLS}.")


def metrics_are_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a receiver of metrics is named."""
    is_off = (
        environ.get("OTEL_METRICS_EXPORTER", "otlp") == "none" or environ.get("OTEL_SDK_DISABLED") == "true"
    )
    return bool(environ.get(_OF_METRICS) or environ.get(_ENDPOINT)) and not is_off
