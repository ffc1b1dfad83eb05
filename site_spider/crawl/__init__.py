"""Scrapy components: the only place that subclasses them."""
