"""Requests that are sent back to the seed topic, and the seeds they become.

It owns the decision which request is spilled and the message it is written as. It never drops a request
before the topic has acknowledged the message.
"""
