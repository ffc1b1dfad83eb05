"""Scrapy commands of this project. All of them refuse another Scrapy than the one needed, in one line."""

import sys

from site_spider import scrapy_version
from site_spider.errors import ConfigError

# Here, and not in the command: Scrapy loads the modules of all commands first, and parts of Scrapy that they
# import may be missing in another version.
try:
    scrapy_version.check()
except ConfigError as error:
    print(f"scrapy: {error}", file=sys.stderr)
    sys.exit(78)  # service.exit_code.CONFIG, which cannot be imported then
