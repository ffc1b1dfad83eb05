"""From the poll to the first request: the thread of the consumer, commits, rebalances, how much is polled.

It owns the consumer. It never looks at pages.
"""
