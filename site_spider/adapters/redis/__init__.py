"""The store of the shared dupefilter in Redis.

It owns the keys and their time to live. It never decides which pages are done: the dupefilter does.
"""
