"""From the poll of a message to its first request: the consumer's thread, rebalances, back-pressure.

It owns the consumer and how many seeds are polled. It never looks at pages or results.
"""
