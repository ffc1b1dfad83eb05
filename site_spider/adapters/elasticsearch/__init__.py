"""Elasticsearch: sink, statistics store, reader.

Nothing else talks to Elasticsearch.
"""
