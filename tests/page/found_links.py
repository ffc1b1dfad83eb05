"""The links that are found on a page."""

from site_spider.page.links import extract_links

BASE = "http://example.com/dir/page?q=1"


def urls(markup: str, base: str = BASE, **options: object) -> list[str]:
    return extract_links(markup, base, **options).urls  # type: ignore[arg-type]
