"""Every setting with its default, its unit and its reason.

Precedence: command line (`-s NAME=value`) > environment variable of the same name >
`custom_settings` of the spider > this file. Lists may be comma lists, dicts are JSON.
"""

import sys as _sys

from scrapy.settings import default_settings as _scrapy

from site_spider import installation as _installation

# --- Scrapy: classes ---------------------------------------------------------------
BOT_NAME = "site_spider"
SPIDER_MODULES = ["site_spider.spiders"]
NEWSPIDER_MODULE = "site_spider.spiders"
COMMANDS_MODULE = _installation.module_of(_sys.argv)  # that of the command alone: all cost 0.4 s of CPU

ASYNCIO_EVENT_LOOP = "uvloop.Loop"  # 0.08 to 0.5 ms of CPU a page less than the standard loop
SCHEDULER = "site_spider.frontier.scheduler.SeedScheduler"
DOWNLOADER = "site_spider.engine.callback_guard.SafeDownloader"
ITEM_PROCESSOR = "site_spider.results.pipeline.PlacedItemProcessor"
DUPEFILTER_CLASS = "site_spider.dupefilter.dupefilter.SeenDupeFilter"
TWISTED_DNS_RESOLVER = "site_spider.download.names.PublicHostResolver"
EXTENSIONS_BASE = {
    name: order
    for name, order in _scrapy.EXTENSIONS_BASE.items()
    if name != "scrapy.extensions.remote_control.RemoteControl"
} | {"site_spider.engine.scrapy_parts.LateRemoteControl": 0}  # instead: imported where it is switched on
# None of Scrapy's stands before what stands in for it (environment.STAND_INS)
EXTENSIONS = {
    "scrapy.extensions.corestats.CoreStats": None,
    "site_spider.engine.scrapy_parts.QuickCoreStats": 0,  # instead: counts without signals
    "scrapy.extensions.logstats.LogStats": None,
    "site_spider.service.log_lines.RateLine": 0,  # instead: tells the lag as well
    "site_spider.download.proxies.ProxyService": 5,  # only where SITE_PROXIES is set
    "site_spider.service.service.SeedService": 10,
}
DOWNLOADER_MIDDLEWARES = {
    "scrapy.downloadermiddlewares.robotstxt.RobotsTxtMiddleware": None,
    "site_spider.frontier.robots.FrontierRobotsMiddleware": 100,  # instead
    "site_spider.download.proxies.ProxyLevelMiddleware": 540,  # gets what the retries give up
    "scrapy.downloadermiddlewares.offsite.OffsiteMiddleware": None,
    "site_spider.engine.scrapy_parts.LeanOffsite": 50,  # instead, as those below: at less cost
    "scrapy.downloadermiddlewares.cookies.CookiesMiddleware": None,
    "site_spider.engine.scrapy_parts.LeanCookies": 700,
    "scrapy.downloadermiddlewares.stats.DownloaderStats": None,
    "site_spider.engine.scrapy_parts.LeanDownloaderStats": 850,
    "scrapy.downloadermiddlewares.retry.RetryMiddleware": None,
    "site_spider.frontier.retry_and_redirect.PatientRetryMiddleware": 550,  # instead: retries wait
    "site_spider.spiders.conditional.ConditionalFetch": 530,  # of what is left of an answer
    "scrapy.downloadermiddlewares.httpcompression.HttpCompressionMiddleware": None,
    "site_spider.download.bodies.SteppedHttpCompression": 590,  # instead: in steps
    "scrapy.downloadermiddlewares.redirect.RedirectMiddleware": None,
    "site_spider.frontier.retry_and_redirect.CheckedRedirectMiddleware": 600,  # instead: only to valid URLs
    "site_spider.download.proxies.ProxyRouteMiddleware": 760,  # behind Scrapy's own for proxies
}
SPIDER_MIDDLEWARES = {
    "site_spider.dupefilter.remote.SeenLookup": 20,  # for a dupefilter outside the process
    "scrapy.spidermiddlewares.depth.DepthMiddleware": None,
    "site_spider.tasks.unfollowed_links.TaskDepth": 900,  # instead: tasks have limits, pages of one list one depth
}
REFERRER_POLICY = "site_spider.engine.scrapy_parts.QuickReferrerPolicy"  # Scrapy's default, at less cost
ITEM_PIPELINES = {"site_spider.results.pipeline.ResultPipeline": 900}

# --- Scrapy: speed -------------------------------------------------------------------
STATS_CLASS = "site_spider.engine.scrapy_parts.QuickStatsCollector"  # 1 µs less at each of 15 counts a page
LOG_FORMATTER = "site_spider.engine.scrapy_parts.PageLogFormatter"  # no log records when DEBUG is off
CONCURRENT_REQUESTS = 64
CONCURRENT_REQUESTS_PER_DOMAIN = 8
CONCURRENT_ITEMS = 4  # Scrapy starts this many tasks for every response: 100 of them cost 0.4 to 0.8 ms
SCRAPER_SLOT_MAX_ACTIVE_SIZE = 50_000_000  # bytes of responses being parsed before downloads pause
RETRY_GIVE_UP_LOG_LEVEL = "DEBUG"  # the result has the reason already
RETRY_EXCEPTIONS = [kind for kind in _scrapy.RETRY_EXCEPTIONS if not str(kind).endswith(".TunnelError")]
RETRY_EXCEPTIONS += ["site_spider.results.failures.TunnelError"]  # instead: a tenth of a start is saved
METAREFRESH_ENABLED = False  # parses every page once more; set to true where sites redirect that way
REACTOR_THREADPOOL_MAXSIZE = 30  # threads for name lookups, each of which can hang for seconds
LOG_LEVEL = "INFO"  # a DEBUG line costs 26 µs, and there are several a page
DEPTH_LIMIT = 3  # hops from the seed
URLLENGTH_LIMIT = 8192  # characters, as for seeds
HTTPERROR_ALLOW_ALL = True  # the spider writes a result for every status

# --- Scrapy: hostile input -------------------------------------------------------------
HTTPPROXY_ENABLED = False  # a proxy of the environment would bypass the guard; SITE_PROXIES does not
TELNETCONSOLE_ENABLED = False  # executes code from a local port
REMOTE_CONTROL_ENABLED = False  # executes code from a local port
DOWNLOAD_HANDLERS = {
    "http": "site_spider.download.handler.PlainDownloadHandler",
    "https": "site_spider.download.handler.PlainDownloadHandler",
    **dict.fromkeys(("file", "data", "ftp", "s3")),  # they read local files or reach other servers
}
DOWNLOAD_MAXSIZE = 32 * 1024 * 1024  # bytes, also after decompression; Scrapy's own limit is 1 GiB
SITE_BODIES_MAX_BYTES = 256_000_000  # large bodies in memory (from 200,000 bytes); a byte counts four times
DOWNLOAD_WARNSIZE = 0  # no warning below the limit
DOWNLOAD_TIMEOUT = 30  # seconds for one attempt; Scrapy's own 180 let few slow hosts hold all slots
DOWNLOAD_VERIFY_CERTIFICATES = True  # a wrong certificate is a failure result; Scrapy does not verify

# --- Seeds -------------------------------------------------------------------------------
SITE_KAFKA_BROKERS = ""  # host:port,...; empty: the embedded seed log in SITE_DATA_DIR
SITE_KAFKA_OPTIONS: dict[str, object] = {}  # JSON, passed to the Kafka client as is (TLS, SASL, ...)
SITE_MEMBER_NAME = ""  # the machine and folder tell members apart; a container has new ones at each start
SITE_SEED_TOPIC = "seeds"
SITE_SEED_TOPICS = ""  # urgent:8,seeds:4,bulk:1: tiers, with weights; empty: SITE_SEED_TOPIC alone
SITE_CONSUMER_GROUP = "site_spider"
SITE_DEAD_LETTER_TOPIC = ""  # empty: <SITE_SEED_TOPIC>.dead-letters
SITE_TASK_TOPIC = ""  # empty: <SITE_SEED_TOPIC>.tasks
SITE_TASK_EVENTS_TOPIC = ""  # empty: <SITE_SEED_TOPIC>.task-events
SITE_CANCELLED_RESULTS = False  # true: a failure result for each seed and link of a cancelled task
SITE_SEED_META_KEYS = ""  # comma list: keys of a seed's meta that reach request.meta, such as playwright
SITE_MAX_SEEDS_IN_FLIGHT = 20_000  # a process; over 1,000 only while hosts are busy or delayed, or for tasks
SITE_SEED_MAX_OPEN_SECONDS = 600  # then the waiting links of the tree are spilled to the seed topic
SITE_TREE_MAX_PAGES = 500  # of a seed in memory, which a crash repeats; further links are spilled
SITE_MAX_SPAN_OFFSETS = 50_000  # between the slowest seed and the next poll; the partition pauses there
SITE_FRONTIER_MAX_REQUESTS = 100_000  # waiting in a process; further links are spilled
SITE_HOST_MAX_REQUESTS = 50_000  # the same for one host, so that it does not fill the memory
SITE_FRONTIER_MAX_BYTES = 256_000_000  # requests, seeds in flight and spills; further links are spilled
SITE_HOST_OWNERSHIP = False  # true: links and redirects to hosts of other owners are spilled
SITE_SPILL_KEY = ""  # signs spilled messages; a comma list: the first signs, each is accepted
SITE_DATA_DIR = "data"  # folder of the embedded default
SITE_LOCAL_KEEP_SECONDS = 604_800  # complete seeds and statistics there, then they are forgotten; 0: never
SITE_MAX_WAIT_SECONDS = 600  # a longer wait comes before every level, so that nothing starves
SITE_RETRY_PAUSE_SECONDS = 2.0  # before the first retry; doubled for each further one, plus up to half at random
SITE_RETRY_LONGEST_PAUSE_SECONDS = 120.0  # also the longest Retry-After that is kept
SITE_RETRY_TIMES_BY_REASON: dict[str, int] = {}  # {"503": 5, "TimeoutError": 1}; else RETRY_TIMES
SITE_ROBOTS_CACHE = 2000  # cached files, one for each origin, when ROBOTSTXT_OBEY is true
SITE_ROBOTS_MAX_AGE_SECONDS = 86_400  # then it is fetched again; RFC 9309 allows no more
SITE_ROBOTS_WAIT_SECONDS = 60  # how long seeds wait for a file that cannot be fetched; then they fail
SITE_CRAWL_DELAY_MAX_SECONDS = 60  # the longest Crawl-delay that is kept
SITE_ALLOW_PRIVATE_HOSTS = False  # true lets seeds and redirects reach loopback and private addresses

# --- Proxies, for requests that fail without one -------------------------------------------------
SITE_PROXIES = ""  # http://user:password@host:port,... or the path of a file with one a line
SITE_PROXY_STATUSES = "403,407,429"  # statuses after which a proxy is tried, after all retries
SITE_PROXY_BODY_PATTERNS: list[str] = []  # regular expressions for the first 8 KiB of a page
SITE_PROXY_TIMEOUTS = 2  # attempts without an answer before a proxy is tried; 0: never
SITE_PROXY_ATTEMPTS = 3  # of one page; then the last answer is the result

# --- Links -------------------------------------------------------------------------------
SITE_LINK_SCOPE = "host"  # which links are followed: host, domain (registrable) or any
SITE_LINKS_TO = "memory"  # or kafka: every link is spilled to the owner of its host
SITE_URL_DENY = ""  # a comma list, or JSON: https://host/path, *.pdf, or RE2; such links are not followed
SITE_URL_ALLOW = ""  # the same of those that are; empty: all
SITE_URL_RULES = ""  # a YAML file with both by host; changes are taken within seconds
SITE_DROP_PARAMS = "tracking"  # links that differ in these alone are one page; none, or names: a,b,utm_*
SITE_FOLLOW_NOFOLLOW = False  # true follows links marked rel=nofollow as well
SITE_SITEMAPS = "seed"  # sitemaps and feeds give links; off; or robots: those of each seed's host too
SITE_SITEMAP_SINCE = ""  # a date, or 7d: entries that changed before it are not followed; empty: all are
SITE_KEEP_ROBOTS = False  # true: the robots.txt of a seed's host is a result, once a host and task
SITE_SOURCES_DIR = "resources/sources"  # YAML files, one a source; changed ones are taken within seconds

# --- Results -----------------------------------------------------------------------------
SITE_SINKS = "local"  # comma list of names in SITE_SINK_CLASSES or dotted paths; all must acknowledge
SITE_RESULT_FIELDS = ""  # a comma list, or JSON with other names ({"task_id": "job"}); empty: all
SITE_TEXT = "off"  # plain: text, title and language of pages; main: text without navigation
SITE_NOINDEX = "keep"  # drop_body: a page that says noindex keeps no body and no text
SITE_CANONICAL = "note"  # merge: a link with the text of its canonical page is one document with it
SITE_RECRAWL_MIN_SECONDS = 3_600  # the shortest interval between checks of a page (`scrapy recrawl --adaptive`)
SITE_RECRAWL_MAX_SECONDS = 2_592_000  # the longest
SITE_RECRAWL_FIRST_SECONDS = 86_400  # before the first check
SITE_RECRAWL_ERROR_SECONDS = 21_600  # after a check that failed
SITE_RECRAWL_MAX_ERRORS = 10  # failed checks in a row, after which a page is not produced any more
SITE_GONE_AFTER = 3  # checks in a row with 404 or 410, after which a page is gone
SITE_GONE = "mark"  # a page that is gone has gone_at; or delete: its document is deleted
SITE_BODY_MAX_BYTES = 10_000_000  # kept of a body, in UTF-8; the rest is cut. 0: no limit
SITE_KEEP_BINARY = False  # true keeps binary content as well, in body_base64
SITE_SINK_FLUSH_SECONDS = 1.0  # age of a result at which its batch is sent
SITE_SINK_BATCH_BYTES = 5_000_000  # size at which a batch is sent
SITE_SINK_BACKLOG_BYTES = 64_000_000  # results that wait for a sink; no download starts above it
SITE_ELASTICSEARCH_HOSTS = ""  # http://host:port,...
SITE_ELASTICSEARCH_OPTIONS: dict[str, object] = {}  # JSON for the client (basic_auth, api_key, ca_certs, ...)
SITE_RESULTS_INDEX = "site_results"
SITE_ITEMS_INDEX = "site_items"  # for items of spiders
SITE_STATS_INDEX = "site_stats"
SITE_HBASE_HOST = "localhost"  # of HBase's Thrift server
SITE_HBASE_PORT = 9090
SITE_HBASE_TABLE = "site_results"  # created when missing
SITE_HBASE_ITEMS_TABLE = "site_items"  # likewise, for items of spiders
SITE_HBASE_ROW_KEY = "url_id"  # or salted (spreads ascending ids), reversed_host (keeps hosts together)
SITE_HBASE_CELL_BYTES = 10_000_000  # a longer body is cut; a server refuses cells of more than 10 MiB
SITE_HBASE_TIMEOUT_SECONDS = 20  # for one call of up to 8 MB; then it is repeated on a new connection
SITE_HBASE_OPTIONS: dict[str, object] = {}  # JSON for the client: transport (framed), protocol (compact)
SITE_RESULTS_TOPIC = "site_results"  # for the Kafka sink
SITE_ITEMS_TOPIC = "site_items"  # likewise, for items of spiders
SITE_WARC_DIR = ""  # for the sink warc; empty: the folder warc in SITE_DATA_DIR
SITE_WARC_MAX_BYTES = 1_000_000_000  # of a file, as archives recommend; then another begins
SITE_WARC_PREFIX = "site_spider"  # how the names of the files begin
SITE_KAFKA_EXACTLY_ONCE = False  # true: results in Kafka and offsets in one transaction

# --- Dupefilter: see docs/dupefilters.md ----------------------------------------------------
SITE_DUPEFILTER = "memory"  # memory, or a name in SITE_DUPEFILTER_CLASSES, or a dotted path
SITE_DUPEFILTER_SCOPE = "task"  # pages are compared within their task; group: with all that the group does
SITE_FILTER_SEEDS = False  # true: seeds whose page is done end as filtered
SITE_BLOOM_CAPACITY = 10_000_000  # pages; beyond it the oldest are forgotten
SITE_BLOOM_ERROR_RATE = 0.000001  # share of new links that are dropped by mistake
SITE_ROLLING_SECONDS = 86_400  # age at which a done page is fetched again; 0: no limit
SITE_ROLLING_COUNT = 1_000_000  # or after this many other pages; 0: no limit
SITE_ROLLING_HITS = 0  # or after this many filtered requests for it; 0: no limit
SITE_REDIS_URL = ""  # redis://host:port/0, for SITE_DUPEFILTER=redis
SITE_REDIS_DUPEFILTER_TTL_SECONDS = 604_800  # then a page may be fetched again; 0: never
SITE_REDIS_DUPEFILTER_BLOOM = False  # true: in Bloom filters of the server, if it has them
SITE_DUPEFILTER_CACHE = 100_000  # cached answers of redis or local
SITE_DUPEFILTER_WAIT_SECONDS = 10  # during an outage of redis or local; then links are fetched without asking

# --- Service -----------------------------------------------------------------------------
SITE_STATS_INTERVAL_SECONDS = 10
SITE_CONSOLE_TOKEN = ""  # who knows it may open `scrapy console`; empty: everybody on this machine
SITE_STATS_TO = ""  # elasticsearch, kafka, redis, local or dotted paths; empty: elasticsearch if set, else local
SITE_STATS_WHEN = "interval,close"  # and idle: when nothing is in flight any more
SITE_STATS_ID = "{host}-{process}-{start}"  # the name in documents; also {spider}, {group}, {topic}, or a path
SITE_STATS_TOPIC = ""  # what consoles read; empty: the seed topic with .stats behind it
SITE_FRONTIER_SOCKET = True  # lets `scrapy frontier` of the same user ask what waits
SITE_NOTIFY_URL = ""  # http(s)://... or mailto:...: is told of full memory, outages and a crawl that stands
SITE_NOTIFY_NO_ITEMS_SECONDS = 0  # without an item, after which it is told; 0: never
SITE_METRICS_ADDRESS = ""  # host:port of process 1; process N of crawl_spider.sh has port + N - 1. Empty: off
SITE_MEMORY_SOFT_BYTES = 0  # of resident memory, above which few seeds are polled; 0: no limit
SITE_STOP_GRACE_SECONDS = 30  # how long a graceful stop may take
SITE_IDLE_CLOSE_SECONDS = 0  # without a seed, after which a process ends with 0; 0: never
SITE_REVOKE_GRACE_SECONDS = 3  # for downloads of revoked partitions; the rest is repeated
SITE_STARTUP_WAIT_SECONDS = 30  # for each server that does not answer at the start

SITE_CALLBACK_TIMEOUT_SECONDS = 120  # then the request of a callback fails, or the process with a blocked loop ends

# --- Our classes, by dotted path -----------------------------------------------------
SITE_SEED_LOG_CLASSES = {
    "kafka": "site_spider.adapters.kafka.seed_log.KafkaSeedLog",
    "local": "site_spider.adapters.local.log.LocalSeedLog",
}
SITE_SINK_CLASSES = {
    "local": "site_spider.adapters.local.results.LocalSink",
    "elasticsearch": "site_spider.adapters.elasticsearch.sink.ElasticsearchSink",
    "hbase": "site_spider.adapters.hbase.sink.HBaseSink",
    "kafka": "site_spider.adapters.kafka.sink.KafkaSink",
    "warc": "site_spider.adapters.warc.sink.WarcSink",
}
SITE_STATS_CLASSES = {  # with kafka, which is SITE_STATS_TOPIC
    "local": "site_spider.adapters.local.results.LocalSink",
    "elasticsearch": "site_spider.adapters.elasticsearch.sink.ElasticsearchSink",
    "redis": "site_spider.adapters.redis.done.RedisStatistics",
}
SITE_READER_CLASSES = {  # what `scrapy results` reads from
    "local": "site_spider.adapters.local.results.LocalResults",
    "elasticsearch": "site_spider.adapters.elasticsearch.results.ElasticsearchResults",
    "hbase": "site_spider.adapters.hbase.results.HBaseResults",
}
SITE_DUPEFILTER_CLASSES = {  # memory is Scrapy's own set
    "bloom": "site_spider.dupefilter.filters.BloomDone",
    "rolling": "site_spider.dupefilter.filters.RollingDone",
    "redis": "site_spider.adapters.redis.done.RedisDone",
    "local": "site_spider.adapters.local.done.LocalDone",
}
