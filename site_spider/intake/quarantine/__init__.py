"""Seeds that may have killed their process, and the order in which they are tried again.

It owns which of them may begin. It never counts deaths itself: that is `ledger/metadata.py`.
"""
