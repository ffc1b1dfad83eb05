"""Protocols for what the crawl needs from servers: seed log, sink, reader, store of marks.

It owns these interfaces and the values that cross them. It never does I/O and knows no server.
"""
