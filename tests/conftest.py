"""Real servers, shared by all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real_servers import address


@pytest.fixture(scope="session")
def elasticsearch_hosts() -> Iterator[str]:
    """The value of SITE_ELASTICSEARCH_HOSTS."""
    yield from address("SITE_ELASTICSEARCH_HOSTS", "elasticsearch")


@pytest.fixture(scope="session")
def kafka_brokers() -> Iterator[str]:
    """The value of SITE_KAFKA_BROKERS."""
    yield from address("SITE_KAFKA_BROKERS", "kafka")
