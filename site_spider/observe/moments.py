"""Moments as text."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(unix_seconds: float) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds")
