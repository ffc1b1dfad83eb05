"""The shape of the code, read from its sources: who sets what, names, sizes. Imports are import-linter's.

Where one of these fails, change the code; an exception is listed here with its reason.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.shape import Module, Setting, classes, functions, modules, set_from_outside, share

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.xdist_group("architecture")  # one worker parses the sources

MOST_LINES = 600
# Files and lines, which only fall (docs/decisions/0024-fewer-modules.md).
# The goals: site_spider 240 files and 34,000 lines, tools and tests together 39,000.
MOST_OF_ALL = {"site_spider": (207, 52_430), "tools": (42, 6_768), "tests": (313, 64_329)}
MEDIAN_LINES, P90_LINES, MOST_FUNCTION_LINES = 6, 15, 40
LONG_FUNCTIONS = {"service/wiring.py __init__": "a parts list", "seed/seed.py parse_seed": "one line a field"}
SHARED_NAMES = {"Command": "the class of each command, as in Scrapy, which goes by the name of the module"}

_RECORDS = "a record of the ledger's, without behaviour; one thread changes it"
_RESULT = "a result is filled in while its page is read"
_HOST = "the record of one host is the frontier's; priority_queue.py is the part of it that looks at one host alone"
_REQUEST = "Scrapy's requests carry these on their way"
_HOOK = "Python's own place for it"
# module -> object -> why its attributes are set there
SET_FROM_OUTSIDE = {
    "adapters/elasticsearch/client.py": {
        "pool": "the certificates have been read",
        "self.pool": "the client makes its pool itself",
    },
    "adapters/hbase/connection.py": {"self._socket": "the client's own, which is made before its host is looked up"},
    "commands/__init__.py": {"sys": _HOOK},
    "commands/output.py": {"sys": _HOOK},
    "commands/service.py": {"opts": "the spider may be named as the argument, too"},
    "commands/site_command.py": {"parser": "Scrapy makes it", "opts": "argparse's result, as Scrapy fills it"},
    "console/access.py": {"context": "Python's TLS takes it only so"},
    "download/handler.py": {
        "response": "Scrapy's, made without its slow constructor",
        "stop": "Scrapy's, which carries it",
    },
    "download/proxies.py": {"made": "a copy of the request, made by Scrapy"},
    "frontier/scheduler.py": {"job": _RECORDS, "job.entry": _RECORDS},
    "frontier/frontier.py": {"host": _HOST, "turn.host": _HOST},
    "frontier/waiter.py": {"request": _REQUEST, "entry": _RECORDS},
    "intake/room.py": {"entry": _RECORDS},
    "intake/seed_queue.py": {"request": _REQUEST},
    "ledger/completion.py": {"entry": _RECORDS, "job.entry": _RECORDS},
    "frontier/spill.py": {"entry": _RECORDS, "job": _RECORDS},
    "page/decode.py": {"decoder": "Python's decoders change how they take errors only so"},
    "page/sitemap.py": {"self._parser": "expat gives up the text that it holds only so"},
    "results/dead_letters.py": {"entry": _RECORDS},
    "results/pipeline.py": {
        "result": _RESULT,
        "request": _REQUEST,
        "job": _RECORDS,
        "callback": "marked, as a decorator does",
    },
    "tasks/parking.py": {"job": _RECORDS},
    "service/stop.py": {"self._crawler.spider": "our commands read the exit code from the spider"},
    "redaction.py": {"record": "logging formats a record of which parts are replaced"},
    "spiders/text_and_duplicates.py": {"result": _RESULT},
    "spiders/crawl_spider.py": {"result": _RESULT, "job": _RECORDS},
    "spiders/conditional.py": {"result": _RESULT, "request": _REQUEST},
    "runtime.py": {"threading": _HOOK},
}


# tests that wait for a time, not for what is to happen
FIXED_WAITS = {
    "test_a_script_that_was_stopped_for_a_while_goes_on": "stopped for longer than a wait of its own takes",
    "test_every_result_is_there_once_over_the_death_of_the_broker": "away for longer than a session lasts",
    "test_nothing_is_counted_before_its_pages_are_durable": "pages that come one after the other",
}


@cache
def sources(package: str) -> list[Module]:
    """Parsed when they are first needed, not when tests are collected."""
    return [*modules(ROOT / package)]


@cache
def settings_from_outside() -> list[Setting]:
    return [setting for module in sources("site_spider") for setting in set_from_outside(module)]


def test_nothing_is_set_on_an_object_from_outside() -> None:
    """A part gets what it works with by its constructor: see service/wiring.py."""
    found = [
        f"{setting.module}:{setting.line} sets {setting.object}.{setting.attribute}: use its constructor"
        for setting in settings_from_outside()
        if not setting.module.startswith("engine/")  # its purpose is to reach into Scrapy's objects
        if setting.object not in SET_FROM_OUTSIDE.get(setting.module, ())
    ]
    assert found == []


def test_the_exceptions_are_needed() -> None:
    """What is no longer set from outside is no longer listed."""
    needed = {(setting.module, setting.object) for setting in settings_from_outside()}
    listed = {(module, name) for module, names in SET_FROM_OUTSIDE.items() for name in names}
    assert listed - needed == set()


@pytest.mark.parametrize(
    "line",
    [
        "self._delivery.on_change = call",
        "part.told = call",
        "self.a, part.told = 1, call",
        "part.count += 1",
        "del part.told",
        "setattr(part, 'told', call)",
        "for part.told in (): pass",
        "with call as part.told: pass",
        "self._delivery.own = call",
        "made = self.make(); made.told = call",
    ],
)
def test_every_way_to_set_an_attribute_is_seen(line: str) -> None:
    text = f"class Own:\n    own: int\n    def method(self, part, call):\n        {line}\n"
    assert len(list(set_from_outside(Module("m.py", text, ast.parse(text))))) == 1


@pytest.mark.parametrize("line", ["self.a = 1", "part.own = 1", "made = Own(); made.b = 1", "a.b.c()", "x = a.b"])
def test_own_objects_may_be_set(line: str) -> None:
    text = f"class Own:\n    own: int\n    def method(self, part):\n        {line}\n"
    assert list(set_from_outside(Module("m.py", text, ast.parse(text)))) == []


def test_no_two_classes_share_a_name() -> None:
    """Private ones included: a name in a log or a traceback says which class it is."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in sources("site_spider"):
        for found in classes(module):
            places[found.name.lstrip("_")].append(f"{module.name}:{found.lineno}")
    shared = {name: where for name, where in places.items() if len(where) > 1}
    assert {name: where for name, where in shared.items() if name not in SHARED_NAMES} == {}
    assert SHARED_NAMES.keys() <= shared.keys(), "listed, but no longer shared"


def test_no_module_is_too_long() -> None:
    """A module that grows is cut by subject."""
    assert {m.name: m.lines for m in sources("site_spider") if m.lines > MOST_LINES} == {}


def test_no_module_continues_another() -> None:
    """What is a part of a module because that grew too long has no subject of its own."""
    assert [
        m.name for m in sources("site_spider") if "part of " in (ast.get_docstring(m.tree) or "").lower().split("\n")[0]
    ] == []


def test_functions_are_short() -> None:
    found = [function for module in sources("site_spider") for function in functions(module)]
    sizes = [function.lines for function in found]
    assert share(sizes, 0.5) <= MEDIAN_LINES
    assert share(sizes, 0.9) <= P90_LINES
    long = {
        f"{function.module} {function.name}": function.lines
        for function in found
        if function.lines > MOST_FUNCTION_LINES
    }
    assert long.keys() == LONG_FUNCTIONS.keys(), long


def imports(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def test_tools_are_no_tests() -> None:
    """They run where requirements.txt alone is installed, and nothing of the service needs them."""
    foreign = ("pytest", "hypothesis", "tests")
    assert [
        f"tools/{module.name} imports {name}"
        for module in sources("tools")
        for name in imports(module)
        if name.split(".")[0] in foreign
    ] == []
    assert [m.name for m in sources("tools") if Path(m.name).name.startswith("test_")] == []
    assert [
        m.name for m in sources("site_spider") for name in imports(m) if name.split(".")[0] in (*foreign, "tools")
    ] == []


def test_no_file_stands_twice() -> None:
    """A tool that edits in place makes a copy of a link."""
    files = [path for folder in ("task_shell", "site_spider") for path in (ROOT / folder).rglob("*.*")]
    texts = Counter(path.read_bytes() for path in files if path.is_file() and not path.is_symlink())
    assert [text[:80] for text, count in texts.items() if count > 1 and len(text) > 1000] == []


def fixed_waits(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Calls of sleep where no condition ends a loop around them; not of functions within, which play a part."""
    for node in nodes:
        is_poll = isinstance(node, ast.For) and any(isinstance(one, ast.Break | ast.Return) for one in ast.walk(node))
        if is_poll or isinstance(node, ast.While | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("sleep") and ast.unparse(node.args[0]) != "0":
            yield ast.unparse(node)
        yield from fixed_waits(ast.iter_child_nodes(node))


def test_tests_wait_for_conditions() -> None:
    """A busy machine makes each fixed wait too short, an idle one too long."""
    found = (node for module in sources("tests") for node in module.tree.body)
    tests = (node for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    waits = {test.name for test in tests if test.name.startswith("test_") and any(fixed_waits(test.body))}
    assert waits == FIXED_WAITS.keys()


@pytest.mark.parametrize("folder", MOST_OF_ALL)
def test_the_code_does_not_grow(folder: str) -> None:
    paths = list((ROOT / folder).rglob("*.py"))
    lines = sum(path.read_bytes().count(b"\n") for path in paths)
    most_files, most_lines = MOST_OF_ALL[folder]
    assert len(paths) <= most_files, "a feature is one module: merge it, or take another away"
    assert lines <= most_lines, "take as much away as is added, or raise the limit with a reason in the decision"
