"""Pure logic: no Scrapy, no client library, no clock, no I/O, no logging."""
