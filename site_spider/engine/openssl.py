"""Functions of OpenSSL that pyOpenSSL has no public name for, and shorter ways for those of every page.

On one thread only: all connections read into one buffer.
"""

from __future__ import annotations

from OpenSSL import SSL
from OpenSSL._util import ffi, lib
from scrapy.utils.ssl import _log_ssl_conn_debug_info

_PARTIAL_WILDCARDS = 0x4  # X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS, as in Python's ssl
_BUFFER_BYTES = 16_384  # as much of a page as a record has
_buffer = ffi.new("char[]", _BUFFER_BYTES)  # of whichever connection reads


def log_connection(host: str, connection: SSL.Connection) -> None:
    """As Scrapy's own client logs it."""
    _log_ssl_conn_debug_info(host, connection)


def set_groups(context: SSL.Context, groups: bytes) -> None:
    """The groups of the key exchange. Of the first, a share is sent at once."""
    if lib.SSL_CTX_set1_curves_list(context._context, groups) != 1:
        raise SSL.Error(f"OpenSSL does not know the groups {groups!r}")


def refuse_partial_wildcards(context: SSL.Context) -> None:
    """A wildcard of a certificate is a whole label."""
    lib.X509_VERIFY_PARAM_set_hostflags(lib.SSL_CTX_get0_param(context._context), _PARTIAL_WILDCARDS)


def expect_name(connection: SSL.Connection, name: bytes) -> None:
    """The certificate has to be for this host name. Raises ValueError."""
    if lib.X509_VERIFY_PARAM_set1_host(lib.SSL_get0_param(connection._ssl), name, len(name)) != 1:
        raise ValueError(f"{name!r} cannot be the name of a certificate")


def expect_address(connection: SSL.Connection, packed: bytes) -> None:
    """The certificate has to be for this IP address. Raises ValueError."""
    if lib.X509_VERIFY_PARAM_set1_ip(lib.SSL_get0_param(connection._ssl), packed, len(packed)) != 1:
        raise ValueError(f"{packed!r} cannot be the address of a certificate")


def has_unread(connection: SSL.Connection) -> bool:
    """Whether bytes came that the connection has not read yet. Asking costs less than an error."""
    return bool(lib.BIO_get_mem_data(connection._into_ssl, ffi.NULL))


def put(connection: SSL.Connection, data: bytes | memoryview) -> None:
    """As `bio_write`."""
    if lib.BIO_write(connection._into_ssl, ffi.from_buffer(data), len(data)) != len(data):
        raise MemoryError


def read(connection: SSL.Connection) -> bytes:
    """As `recv`, of one record."""
    size = lib.SSL_read(connection._ssl, _buffer, _BUFFER_BYTES)
    if size <= 0:
        connection._raise_ssl_error(connection._ssl, size)
    return bytes(ffi.buffer(_buffer, size))


def write(connection: SSL.Connection, page: bytes) -> None:
    """As `sendall`."""
    written = lib.SSL_write(connection._ssl, page, len(page))
    if written <= 0:
        connection._raise_ssl_error(connection._ssl, written)
    if written < len(page):
        connection.sendall(page[written:])


def outgoing(connection: SSL.Connection) -> bytes:
    """All that is to be sent."""
    size = lib.BIO_get_mem_data(connection._from_ssl, ffi.NULL)
    if not 0 < size <= _BUFFER_BYTES:
        return connection.bio_read(size) if size else b""
    lib.BIO_read(connection._from_ssl, _buffer, size)
    return bytes(ffi.buffer(_buffer, size))
