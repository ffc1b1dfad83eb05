"""A web site on many loopback addresses, and what a crawler must make of each of its pages."""
