"""The Elasticsearch sink, the store of statistics, and the reader of results.

It owns index templates, bulk requests and what Elasticsearch's answers mean. It never decides when a record
is written again: the delivery does.
"""
