"""Keys find the partition that Kafka's Java client would choose."""

from __future__ import annotations

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.seed.tiers import murmur2, partition_of

# from org.apache.kafka.common.utils.UtilsTest
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "expected"), VECTORS.items())
def test_the_hash_is_that_of_the_java_client(key: bytes, expected: int) -> None:
    """Its own test vectors, which are signed."""
    assert murmur2(key) == expected & 0xFFFFFFFF


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_the_partition_is_that_of_the_c_client(key: bytes, partitions: int) -> None:
    """For any key and any number of partitions."""
    assert partition_of(key, partitions) == confluent_kafka.murmur2(key, partitions)
