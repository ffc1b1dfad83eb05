"""Sources: which pages of a site are fetched, what is followed and what is extracted, by configuration.

It owns the YAML files of SITE_SOURCES_DIR, from their text to the items and links of a page. It never
fetches, and never runs a pattern of a user on another engine than RE2.
"""
