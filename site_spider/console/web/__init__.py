"""The web server of the console: who may ask, what is answered, how it looks.

It owns the checks of requests, sessions and templates. It never sends a value of the web as mark-up, and
changes nothing without a POST that carries the session's token.
"""
