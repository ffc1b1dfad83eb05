"""A distributed crawler built on Scrapy: seeds from Kafka, results to Elasticsearch, HBase or Kafka."""

from site_spider import old_names

old_names.install()
