"""From an item to the acknowledgement of every sink, and to the dead letter when a sink refuses it.

It owns batches, retries of writes, and the order of results and commits. It never talks to a server:
adapters do.
"""
