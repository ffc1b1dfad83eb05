"""Scrapy commands of this project, and the output that they share.

They own arguments, tables and exit codes. They never crawl by themselves: `scrapy crawl` starts a service.
With another version of Scrapy than the one needed, all of them end with one line that says so.
"""

import sys

from site_spider import resources
from site_spider.errors import ConfigError

# Here, and not in the command: Scrapy loads the modules of all commands first, and parts of Scrapy that they
# import may be missing in another version.
try:
    resources.check()
except ConfigError as error:
    print(f"scrapy: {error}", file=sys.stderr)
    sys.exit(78)  # EXIT_CONFIG, which cannot be imported then
