"""What a running crawl shows: statistics, progress, the contents of the frontier.

It owns the statistics document and the socket of `scrapy frontier`. It never changes anything in the crawl.
"""
