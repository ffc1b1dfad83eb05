"""Whether, when and how often a failed download is tried again, and how a failure is described.

It never waits: the frontier does.
"""
