"""Elasticsearch: sink, statistics store, reader.

Nothing else talks to Elasticsearch.
"""

from functools import partial

from site_spider.old_names import class_of

__getattr__ = partial(class_of, __name__)
