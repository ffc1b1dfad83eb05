"""The keys of `Request.meta` that this project uses.

No seed can set any of them. Those of ours begin with `site_` and never leave the process: what of them
counts elsewhere stands in `seed.spilled`.
"""

from __future__ import annotations

# --- ours
PREFIX = "site_"
JOB = "site_job"  # the Job that a request serves
UNRAISED_PRIORITY = "site_unraised_priority"  # the priority before redirects raised it
NOT_BEFORE = "site_not_before"  # event-loop time before which a retry is not made
AGAIN = "site_again"  # the page was fetched before its canonical page, and is asked for again
GIVEN = "site_given"  # it goes on with a page: a middleware or a callback gave it, or another process began
RETRY_REASONS = "site_retry_reasons"  # why each earlier attempt failed
NOT_FOLLOWED = "site_not_followed"  # why a redirect was not followed
STAYS = "site_stays"  # a request that is not spilled and is crawled here; true: also when its task pauses
ROUTE = "site_route"  # the proxies that a request was sent through
ITEMS = "site_items"  # how many items the page has given so far
FOR_ROBOTS = "site_for_robots"  # the request fetches a robots.txt
TO_TOPIC = "site_to_topic"  # the seed topic that a link goes to, as the rule of a source says
LEAF = "site_leaf"  # with it: no links are followed from there
SITEMAP = "site_sitemap"  # what the sitemap says that a link was found in
KNOWN_PAGE = "site_known_page"  # what the store says of a page that is fetched if it has changed
CHECKED = "site_checked"  # with it, of the answer: what came of the comparison
SAME_DEPTH = "site_same_depth"  # the request is as deep as the page that names it
PAGE_NUMBER = "site_page_number"  # of a list with pagination, from 2 on
KNOWN_RUN = "site_known_run"  # with it: entries of the list in a row that are known, and before when they were stored

# --- Scrapy's
COOKIEJAR = "cookiejar"
DOWNLOAD_SLOT = "download_slot"
VERBATIM_URL = "verbatim_url"
DONT_OBEY_ROBOTSTXT = "dont_obey_robotstxt"
