# The crawler, its commands and the console. See docs/deploying.md.
#
#   docker build -t site-spider .
#   docker run --rm --read-only --cap-drop all --tmpfs /run/site_spider --env-file site_spider.env site-spider
#
# The last stage copies what the others have made: no compiler, cache or package index in the image.

FROM docker.io/library/python:3.11-slim AS wheels
WORKDIR /wheels
COPY requirements.txt .
RUN python3 -m venv /pip && /pip/bin/pip wheel --no-cache-dir --wheel-dir /wheels --requirement requirements.txt

# The package with modules compiled to C; with --build-arg COMPILED=no in pure Python, without need of a compiler.
FROM docker.io/library/python:3.11-slim AS package
ARG COMPILED=yes
WORKDIR /build
COPY requirements-build.txt .
# hadolint ignore=DL3008
RUN [ "$COMPILED" = no ] || { \
        apt-get update \
        && apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev \
        && rm -rf /var/lib/apt/lists/* \
        && python3 -m venv /pip \
        && /pip/bin/pip install --no-cache-dir --requirement requirements-build.txt; }
# As gcc's -O: 0 takes a third of the time.
ARG COMPILE_LEVEL=2
COPY hatch_build.py pyproject.toml ./
COPY site_spider site_spider
RUN mkdir /package && if [ "$COMPILED" = no ]; then cp -r site_spider /package; else \
        /pip/bin/python -c 'import hatch_build, pathlib; hatch_build.compile_into(pathlib.Path("/package"))'; fi

FROM docker.io/library/python:3.11-slim
# The folder is the project: task_shell/ works in it as in a checkout.
WORKDIR /opt/site_spider
COPY requirements.txt scrapy.cfg ./
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    python3 -m venv .venv \
    && .venv/bin/pip install --no-cache-dir --no-index --find-links /wheels --requirement requirements.txt \
    && sha256sum /opt/site_spider/requirements.txt > .venv/.installed-requirements.txt
COPY task_shell task_shell
COPY resources resources
COPY --from=package /package .
# A tmpfs has the mode of the folder that it covers, and root as its owner.
RUN .venv/bin/python -m compileall -q site_spider \
    && mkdir --mode 700 data \
    && chown 10001:10001 data \
    && mkdir --mode 1777 /run/site_spider

ENV PATH=/opt/site_spider/.venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/run/site_spider \
    TMPDIR=/run/site_spider \
    XDG_RUNTIME_DIR=/run/site_spider \
    SITE_METRICS_ADDRESS=127.0.0.1:9464
USER 10001:10001
# Seeds and results of a crawl without servers; with Kafka and Elasticsearch nothing is written here.
VOLUME /opt/site_spider/data
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-I", "/opt/site_spider/resources/deploy/healthy.py"]
ENTRYPOINT ["scrapy"]
CMD ["crawl", "crawl_spider"]
