"""The programs of the other contestants; each can be run alone, as its first lines say.

Those in Go and Rust have a folder each, with all that they need pinned.
"""
