"""The console in a real browser, beside a real crawl."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from site_spider.seed.seed import seed_message
from tests.adapters.raw_server import Asked, answering
from tests.commands.project import Project
from tests.console.consoles import PAGES
from tests.console.snapshots import host, snapshot

SCRIPT = "<script>window.owned=1</script>"
WAIT_MS = 300_000
# what a tile may say, however the crawl goes just then
LONGEST = """document.querySelectorAll('.tile b').forEach(
    tile => { tile.textContent = tile.className ? '20 h 59 min to 23 h 59 min' : '123,456,789'; })"""


def page_of(asked: Asked) -> bytes:
    """It takes a while; /fail answers 404 with mark-up in its reason."""
    time.sleep(0.1)
    body = f"<title>{SCRIPT}</title><p>{asked.path}</p>".encode() + b" " * 4_000
    head = f"404 Gone {SCRIPT}" if asked.path.startswith("/fail") else "200 OK"
    return f"HTTP/1.1 {head}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of the console beside a crawl of eight minutes, with a web that has something against us."""
    folder = tmp_path_factory.mktemp("s")  # with a short name, because sockets lie in it
    project = Project(folder / "data")
    own = {"XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(folder)}  # where the sockets of others would be looked for
    own |= {"SITE_ALLOW_PRIVATE_HOSTS": "true", "SITE_STATS_INTERVAL_SECONDS": "1", "DOWNLOAD_DELAY": "0.5"}
    evil = snapshot(9, at=time.time(), largest_hosts=[host(SCRIPT, 30)], host_name=SCRIPT)
    with ExitStack() as stack:
        sites = [stack.enter_context(answering(page_of, f"127.0.0.{number}")) for number in range(2, 6)]
        urls = [(f"{sites[number % 4]}/page{number}", "spring") for number in range(4000)]
        urls += [(f"{sites[number % 4]}/fail?q=%3Cscript%3E{number}", SCRIPT) for number in range(20)]
        project.produce("seeds", *(seed_message(url, task_id=task) for url, task in urls))
        project.produce("seeds", (b"k", f'{{"url": "{SCRIPT}"}}'.encode()))
        project.produce("seeds.stats", (b"evil", json.dumps(evil).encode()))
        log = stack.enter_context((folder / "stderr").open("wb"))
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": log}
        for command in (("crawl", "crawl_spider"), ("console", "--port", "0")):
            process = stack.enter_context(project.started(*command, **own, **pipes))
            stack.callback(process.terminate)
        line = process.stdout.readline().decode()
        assert line.startswith("The console is at "), (folder / "stderr").read_text()
        yield line.removeprefix("The console is at ").strip()


class Reader:
    """A page of a browser that hears what goes wrong.

    What `wait_for_function` gets is a function: the policy of the pages lets the first look evaluate a string, not the
    next one, so that an expression fails as soon as it has to wait.
    """

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.wrong: list[str] = []
        self.page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_error: object) -> None:
        self.context.close()


def test_every_page_works_and_no_script_of_the_web_runs(browser: Any, address: str) -> None:
    """In a URL, a title, a failure, a host, a task and a dead letter."""
    with Reader(browser) as reader:
        page = reader.page
        page.goto(address)
        page.wait_for_function("() => document.querySelector('#conservation b').textContent !== '0'")
        seen = ""
        for path in PAGES:
            query = "?url=http://127.0.0.2/" if path == "/url" else ""
            page.goto(f"{address.rstrip('/')}{path}{query}")
            seen += page.inner_text("main")
            assert page.evaluate("window.owned") is None
            assert page.evaluate("document.scripts.length") == 2
            assert page.evaluate("document.querySelectorAll('main script').length") == 0
        assert reader.wrong == []
        page.goto(f"{address}failures")
        page.wait_for_function("said => document.body.innerText.includes(said)", arg=SCRIPT)
        assert SCRIPT in seen, "the test has shown nothing"
        assert page.evaluate("window.owned") is None


def test_curves_and_numbers_move_while_a_crawl_runs(browser: Any, address: str) -> None:
    with Reader(browser) as reader:
        page = reader.page
        page.goto(address)
        page.wait_for_selector(".chart[data-series=pages] canvas")
        results, last = (
            page.inner_text("#conservation .outcome-1 b"),
            page.get_attribute(".chart[data-series=lag]", "data-last"),
        )
        page.wait_for_function(
            "([before, last]) => document.querySelector('.outcome-1 b').textContent !== before"
            " && document.querySelector('.chart[data-series=lag]').dataset.last !== last",
            arg=[results, last],
        )
        points = int(page.get_attribute(".chart[data-series=pages]", "data-points"))
        page.wait_for_function(
            "before => +document.querySelector('.chart[data-series=pages]').dataset.points > before"
            " && +document.querySelector('.chart[data-series=pages]').dataset.last > 0",
            arg=points,
        )
        assert reader.wrong == []


def test_pages_are_reached_with_the_keyboard(browser: Any, address: str) -> None:
    with Reader(browser) as reader:
        page = reader.page
        page.goto(address)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        for _ in range(3):  # the overview, tasks, processes
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url("**/processes")
        assert "running" in page.inner_text("#processes")


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_a_phone_shows_all_without_scrolling_sideways(browser: Any, address: str, scheme: str) -> None:
    with Reader(browser, viewport={"width": 360, "height": 740}, color_scheme=scheme) as reader:
        for path in (*PAGES, f"/task?id={'x' * 512}"):
            reader.page.goto(f"{address.rstrip('/')}{path}")
            reader.page.evaluate(LONGEST)
            assert reader.page.evaluate("document.documentElement.scrollWidth") <= 360, path
        back = reader.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in back[4:-1].split(",")) < 3 * 128) == (scheme == "dark")
        assert reader.wrong == []


def test_a_page_says_that_it_is_old_while_somebody_is_in_a_part_of_it(browser: Any, address: str) -> None:
    """A click into a table is enough; what stands there must not look like the newest."""
    with Reader(browser) as reader:
        page = reader.page
        page.goto(f"{address}processes")
        page.wait_for_selector("#processes tbody .badge")
        page.focus("#processes .scroll")
        page.wait_for_selector(".stale", state="visible")
        page.evaluate("document.activeElement.blur()")
        page.wait_for_selector(".stale", state="hidden")
        assert reader.wrong == []


def test_parts_that_come_later_are_shown(browser: Any, address: str) -> None:
    """A task may be declared, and a URL done, behind the load of its page."""
    found = f"{address}url?url=http%3A//127.0.0.2/never"
    with Reader(browser) as reader:
        page = reader.page
        page.route(f"{address}task?id=spring", lambda route: route.continue_(url=f"{address}task"))
        page.goto(f"{address}task?id=spring")
        assert "Nothing is known of this task" in page.inner_text("main")
        page.unroute(f"{address}task?id=spring")
        page.wait_for_selector("#orders")
        page.goto(found)
        page.evaluate("document.querySelector('#found h2').textContent = 'old'")
        page.wait_for_function("() => document.querySelector('#found h2').textContent.startsWith('unknown')")
        assert reader.wrong == []


def test_what_somebody_writes_is_not_lost_to_a_part_that_comes_or_goes(browser: Any, address: str) -> None:
    """As when the console was started again, and has not read of the task yet."""
    with Reader(browser) as reader:
        page = reader.page
        page.goto(f"{address}task?id=spring")
        page.fill("textarea", "weight=2")
        page.evaluate("document.activeElement.blur()")
        page.route(f"{address}task?id=spring", lambda route: route.continue_(url=f"{address}task"))
        page.wait_for_selector(".stale", state="visible")
        assert page.input_value("textarea") == "weight=2"
        page.fill("textarea", "")
        page.evaluate("document.activeElement.blur()")
        page.wait_for_selector("text=Nothing is known of this task")
        assert reader.wrong == []


def test_chosen_dead_letters_are_put_back_by_a_click(browser: Any, address: str) -> None:
    with Reader(browser) as reader:
        page = reader.page
        page.goto(f"{address}failures")
        page.wait_for_function(
            "() => document.querySelector('#dead-letters input[type=checkbox]') || (location.reload(), false)"
        )
        page.check("#dead-letters input[type=checkbox] >> nth=0")
        page.click("#dead-letters button")
        page.wait_for_selector(".said")
        assert "1 dead letter of 1 put back." in page.inner_text(".said")
        assert "put back" in page.inner_text("#dead-letters tbody")
