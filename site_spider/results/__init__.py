"""From a callback's item to the acknowledgement of every sink, and the dead letters beside them.

It owns batches, retries and back-pressure of sinks. It never talks to a server itself: adapters do.
"""
