"""The Kafka seed log, the Kafka sink, and transactions of results with offsets.

It owns consumers, producers, group membership and assignment. It never parses a seed or decides which
offset is safe to commit.
"""
