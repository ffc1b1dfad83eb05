"""The links that are found on a page."""

from itertools import chain

from site_spider.page.links import link_slices

BASE = "http://example.com/dir/page?q=1"


def urls(markup: str, base: str = BASE, **options: object) -> list[str]:
    return [*chain.from_iterable(link_slices(markup, base, **options))]  # type: ignore[arg-type]
