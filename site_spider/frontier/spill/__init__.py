"""Requests that go back to the seed topic, and the messages they travel in.

It owns what a message says of a request that left. It never drops one: the topic acknowledges first.
"""
