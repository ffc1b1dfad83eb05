"""Which pages were met, and which are done: in memory, Bloom filters, SQLite or Redis.

It owns the marks of pages. It never marks a page as done before the seed that led to it is complete.
"""
