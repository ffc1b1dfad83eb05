"""robots.txt: fetched, kept, waited for and obeyed.

It never belongs to a seed.
"""
