"""What the crawl asks of servers: seed logs, sinks, readers and stores, as protocols.

It owns the interfaces and the values that cross them. It never does I/O and knows no server.
"""
