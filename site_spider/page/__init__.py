"""Reading URLs and bodies: content codings, encodings, links, fingerprints.

It owns pure functions over bytes and text. It never fetches, and knows nothing of seeds or Scrapy's engine.
"""
