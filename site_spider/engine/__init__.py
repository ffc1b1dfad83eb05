"""Everything that uses private parts of Scrapy and Twisted, and what runs beside the requests of a crawl.

It owns the hooks into Scrapy's engine, the short way of a request through it, tasks and turns of the event
loop. It never decides which seed is complete or which request is next.
"""
