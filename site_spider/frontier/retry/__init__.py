"""Whether, when and how often a failed download is tried again, and how a failure is described.

It owns Scrapy's retry and redirect middlewares and the reasons of failures. It never waits itself: a retry
waits in the frontier.
"""
