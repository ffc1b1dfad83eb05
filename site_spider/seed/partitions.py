"""The partition of a key, as Kafka's Java client computes it (murmur2)."""

from __future__ import annotations

_SEED = 0x9747B28C
_FACTOR = 0x5BD1E995
_WORD = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash, unsigned (Java shows the same bits as a signed number)."""
    length = len(data)
    result = (_SEED ^ length) & _WORD
    whole = length & ~3
    for index in range(0, whole, 4):
        word = int.from_bytes(data[index : index + 4], "little") * _FACTOR & _WORD
        word = (word ^ word >> 24) * _FACTOR & _WORD
        result = (result * _FACTOR & _WORD) ^ word
    if whole < length:
        result = (result ^ int.from_bytes(data[whole:], "little")) * _FACTOR & _WORD
    result = (result ^ result >> 13) * _FACTOR & _WORD
    return result ^ result >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The number of the partition where messages with this key go."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
