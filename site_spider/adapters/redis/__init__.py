"""Redis: the shared dupefilter.

Nothing else talks to Redis.
"""
