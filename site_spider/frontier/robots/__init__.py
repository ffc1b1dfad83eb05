"""robots.txt: fetched once for each origin, cached, and obeyed.

It owns the cache of rules and the requests that fetch them. It never counts such a request as part of a
seed.
"""
