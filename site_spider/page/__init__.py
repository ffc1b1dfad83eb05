"""What a body says: text, links, URLs, fingerprints.

Pure functions over bytes and text. It never fetches and knows nothing of seeds.
"""
