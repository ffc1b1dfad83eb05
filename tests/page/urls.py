"""URLs for Hypothesis: whole ones, and texts that are nearly some."""

from hypothesis import strategies as st

PIECES = [
    "http://", "HTTPS://", "a.b", "h", "ü", "xn--", ":", "80", "0", "@", "/", "//", "..", ".", "?", "#",
    "&", "=", "%", "%C3", ";", "\\", "[", "]", "::1", "~", "\u3002", "ß", "|", "\ud800", "\x00", " ",
    "x" * 64,
]  # fmt: skip
NEARLY_URLS = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
SIMPLE_URLS = st.from_regex(r"https?://(a|b\.c|h:81)/[aB.~_/-]{0,8}(\?[aB1.&=]{0,12})?", fullmatch=True)
