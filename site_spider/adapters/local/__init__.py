"""The embedded default: seed log, sink and marks in SQLite files.

Nothing else opens these files.
"""
