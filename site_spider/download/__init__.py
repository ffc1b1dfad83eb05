"""From a request to a response: addresses, connections, TLS, HTTP, content codings.

It owns sockets, file descriptors and the guard against private addresses. It never decides when a request
starts, or finds links.
"""
