"""Scrapy commands of this project, and the output that they share.

They own arguments, tables and exit codes. They never crawl by themselves: `scrapy crawl` starts a service.
With another version of Scrapy than the one needed, all of them end with one line that says so.
"""

import os
import sys

from site_spider import installation
from site_spider.errors import ConfigError

for _stream, _mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, _stream) is None:  # closed by who started this: else a file of ours takes its number
        setattr(sys, _stream, open(os.devnull, _mode))  # noqa: PTH123, SIM115 - as long as the process

# Here, and not in the command: Scrapy loads the modules of all commands first, and parts of Scrapy that they
# import may be missing in another version.
try:
    installation.check()
except ConfigError as error:
    print(f"scrapy: {error}", file=sys.stderr)
    sys.exit(78)  # EXIT_CONFIG, which cannot be imported then
