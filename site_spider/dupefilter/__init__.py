"""Which pages were done: in memory, Bloom filters, SQLite or Redis.

It owns the marks. A page is marked when its seed is complete, never when it is queued.
"""
