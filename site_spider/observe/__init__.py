"""What can be seen of a running crawl: statistics, progress, the frontier.

It reads and never changes anything.
"""
