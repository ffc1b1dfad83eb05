"""The verbs of `scrapy task`, one module for those that belong together.

They own the words and options of a verb and what it prints. They never decide what becomes of a seed.
"""
