"""Every place that touches the inside of Scrapy.

It owns the shorter way through the engine and the lean parts. It never decides anything about seeds.
"""
