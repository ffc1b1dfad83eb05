"""Exit codes of `scrapy crawl`, after sysexits.h: crawl_spider.sh decides by them what to do next."""

UNAVAILABLE = 69  # a server is away
SOFTWARE = 70  # ended by an error of its own, to be started again
CONFIG = 78  # a setting cannot be used: starting again does not help
