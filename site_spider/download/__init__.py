"""From a request to a response: addresses, connections, TLS, HTTP.

It owns sockets and the guard against private addresses. It never parses a page.
"""
