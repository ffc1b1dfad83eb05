"""Seeds suspected of crashing the process, and the order in which they are tried again.

It owns the care after a death. It never decides what a suspicion is: that lies with the ledger.
"""
