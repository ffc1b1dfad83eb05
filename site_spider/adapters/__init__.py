"""Clients of servers, one folder for each server or file format.

They own the client libraries and turn a client's errors into ours. They never know Scrapy, the ledger or
the frontier.
"""
