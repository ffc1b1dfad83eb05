"""Real servers, shared by all tests of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.real_servers import address


@pytest.fixture(scope="session")
def elasticsearch_hosts() -> Iterator[str]:
    """The value of SITE_ELASTICSEARCH_HOSTS."""
    yield from address("SITE_ELASTICSEARCH_HOSTS", "elasticsearch")


@pytest.fixture(scope="session")
def hbase_address() -> Iterator[str]:
    """The values of SITE_HBASE_HOST and SITE_HBASE_PORT, as host:port."""
    ports = address("SITE_HBASE_PORT", "hbase")
    yield from (f"{os.environ.get('SITE_HBASE_HOST', '127.0.0.1')}:{port}" for port in ports)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The value of SITE_REDIS_URL."""
    yield from address("SITE_REDIS_URL", "redis")


@pytest.fixture(scope="session")
def kafka_brokers() -> Iterator[str]:
    """The value of SITE_KAFKA_BROKERS."""
    yield from address("SITE_KAFKA_BROKERS", "kafka")
