"""All requests that wait, and whose turn it is: levels, hosts, delays, memory.

It owns the queues and Scrapy's scheduler. It never downloads.
"""
