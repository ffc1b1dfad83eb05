"""Requests and seeds that wait, and which of them starts next: levels, hosts, delays, memory.

It owns the queues and Scrapy's scheduler. It never downloads, and never drops a request to save memory.
"""
