"""The embedded default in SQLite files: the seed log, results, statistics and dupefilter marks.

It owns these files and which processes of this machine are members of a group. It never opens a network
connection.
"""
