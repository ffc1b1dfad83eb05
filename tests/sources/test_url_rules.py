"""Rules for URLs: what a list, a host and a file say, and which files are refused."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest

from site_spider.errors import ConfigError
from site_spider.page.url import pattern_of
from site_spider.sources import library
from site_spider.sources.url_rules import Shape, UrlRules, UrlRulesFile

RULES = r"""
"*": {deny: ["*.zip"]}
h.test:
  deny: {prefixes: [/cart, "http://h.test/x"], suffixes: [.PDF], patterns: ['\?sort=']}
  repeats: 0
"*.d.test": {allow: [/ok/], segments: 3, length: 40}
www.d.test: {segments: 4}
my_host.test: &same {deny: [/no]}
"2001:db8::1": *same
"""
LARGE = ",".join(f'"([a-z]{{1,99}}x){{1,9}}{n}"' for n in range(900))


def rules(folder: Path, text: str = "", **settings: str) -> UrlRules:
    path = folder / "rules.yaml"
    path.write_text(text)
    return UrlRulesFile.open({"SITE_URL_RULES": str(path) if text else "", **settings}).rules


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        *(("http://h.test/a", None), ("http://h.test", None), ("http://h.test/a/a/a", None)),
        ("http://h.test/cart?x", "h.test deny /cart"),
        ("http://h.test/a/cart", None),
        ("http://h.test/x1", "h.test deny http://h.test/x"),
        ("http://h.test/a.pdf?b", "h.test deny .pdf"),
        ("http://h.test/a?b=.pdf", None),
        ("http://h.test/a?sort=1", r"h.test deny \?sort="),
        ("http://o.test/a/a/a", "repeats"),
        ("http://o.test/b/a/b/a/b/a/", "repeats"),
        ("http://o.test/a/b/a/c/a/d?x=/a/a/a", None),
        ("http://o.test/" + "/".join(map(str, range(21))), "segments"),
        ("http://o.test/" + "/".join(map(str, range(20))), None),
        *(("http://www.d.test/ok/1", None), ("http://d.test/no", "allow"), ("http://od.test/no", None)),
        ("http://d.test/ok/a/b/c", "segments"),
        ("http://www.d.test/ok/a/b/c", None),
        ("http://d.test/ok/" + "a" * 40, "length"),
        *(("http://q.test/calendar/1", "SITE_URL_DENY /calendar/"), ("http://q.test/a.EXE", "SITE_URL_DENY .exe")),
        ("http://q.test/a.zip", "* deny .zip"),
        ("http://q.test/\ud800calendar/", None),
        ("http://my_host.test/no", "my_host.test deny /no"),
        ("http://[2001:db8::1]:8080/no", "2001:db8::1 deny /no"),
    ],
)
def test_a_link_is_refused_by_the_rules_for_its_host(tmp_path: Path, url: str, rule: str | None) -> None:
    assert rules(tmp_path, RULES, SITE_URL_DENY="/calendar/, *.exe").refusal(url) == rule


@pytest.mark.parametrize(
    ("entry", "url", "is_in"),
    [
        ("https://h.test/c++/(a)?x[]=1", "https://h.test/c++/(a)?x[]=1&y", True),
        ("https://h.test/wiki/A_(b)", "https://h.test/wiki/A_b", False),
        ("*.tar(1)", "https://h.test/x.TAR(1)", True),
        (r"https://h\.test/[0-9]+$", "https://h.test/12", True),
        ("https://h.test/.*[.]zip", "https://h.test/a.zip", True),
    ],
)
def test_a_beginning_or_an_ending_is_taken_as_it_stands(tmp_path: Path, entry: str, url: str, is_in: bool) -> None:
    assert (rules(tmp_path, SITE_URL_DENY=json.dumps([entry])).refusal(url) is not None) is is_in


def test_a_link_has_to_be_in_one_of_the_lists_that_allow(tmp_path: Path) -> None:
    text = "h.test: {allow: [/b/]}"
    found = rules(tmp_path, text, SITE_URL_ALLOW=r'["/a{1,2}/"]')
    said = [found.refusal(f"http://{url}/") for url in ("h.test/a", "h.test/b", "h.test/c", "o.test/b")]
    assert said == [None, None, "allow", "allow"]
    assert found.refusal("http://h.test/sitemap.xml", needs_allow=False) is None


@pytest.mark.parametrize("end", ["", "/", "?q", "/?q=/x/x"])
def test_a_shape_is_that_of_the_path_alone(tmp_path: Path, end: str) -> None:
    """Without rules as well; 0 is any number."""
    found = [Shape(2, 20).fault(f"http://h.test/{path}{end}") for path in ("a/a", "b/x/x", "a/b/a/b", "a", "a/b/a")]
    assert found == ["repeats", "repeats", "repeats", None, None]
    assert [Shape(3, 1).fault(f"http://h.test/{path}{end}") for path in ("a", "a/b")] == [None, "segments"]
    assert rules(tmp_path).refusal(f"http://h.test/a/a/a{end}") == "repeats"
    assert rules(tmp_path).refusal(f"http://h.test/{'/'.join(map(str, range(20)))}{end}") is None
    assert Shape(0, 0, 0).fault(f"http://h.test{'/a' * 4_000}{end}") is None
    long = [Shape(0, 150).fault(f"http://h.test{'/a' * number}{end}") for number in (150, 151)]
    assert long == [None, "segments"]


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("h.test: {deni: []}", "1:10", "did you mean deny?"),
        ("\nh.test:\n  deny: ['(?=a)']", "3:3", "RE2 does not take the pattern"),
        ("h test: {}", "1:1", "'h test' is no host name, such as shop.example"),
        ("B\xfccher.test: {}", "1:1", "; write xn--bcher-kva.test"),
        ("'*.H.test:8080': {}", "1:1", "; write *.h.test"),
        ("h.test: {deny: {prefixes: [cart]}}", "1:28", "'cart' is not taken"),
        ("[1]", "1:1", "must be a mapping with hosts as its keys"),
        ("a: {}\na: {}", "2:1", "the key 'a' stands here twice"),
        ("h.test: {segments: -1}", "1:10", "must be 0 or more"),
        ("h.test: {deny: '*.zip'}", "1:10", "must be a list of texts, or a mapping with prefixes, suffixes, patterns"),
        ("h.test: {deny: [1]}", "1:10", "must be a list of texts, or a mapping with prefixes, suffixes, patterns"),
        ("h.test: {deny: {zzz: [a]}}", "1:17", "not known; known here: patterns, prefixes, suffixes"),
        ("h: {deny: ['" + "x" * 1_001 + "']}", "1:5", "1000 at most are taken"),
        ("h: {deny: [" + "a," * 1_001 + "]}", "1:5", "1000 at most"),
        (f"h: {{deny: [{LARGE}]}}", "1:5", "16000000"),
    ],
)  # fmt: skip
def test_a_wrong_file_ends_the_start_with_the_line(tmp_path: Path, text: str, place: str, said: str) -> None:
    with pytest.raises(ConfigError, match="SITE_URL_RULES cannot be used") as found:
        rules(tmp_path, text)
    assert f"rules.yaml:{place}" in str(found.value).partition("\n")[0]
    assert said in str(found.value)


@pytest.mark.parametrize("value", ["(", "a{1,3}", '["(?!x)"]', "*.pdf,(", ",".join(map(str, range(1_001)))])
def test_a_wrong_list_ends_the_start(tmp_path: Path, value: str) -> None:
    for name in ("SITE_URL_DENY", "SITE_URL_ALLOW"):
        with pytest.raises(ConfigError, match=name):
            rules(tmp_path, **{name: value})


def test_a_missing_file_ends_the_start(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ConfigError, match=r"SITE_URL_RULES cannot be used: [^:]+: cannot be read: "):
            UrlRulesFile.open({"SITE_URL_RULES": str(path)})


def test_a_wrong_change_leaves_the_rules_as_they_were_and_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("h.test: {deny: [/a]}")
    file = UrlRulesFile.open({"SITE_URL_RULES": str(path)})

    def changed(text: str | None) -> tuple[bool, str | None]:
        if text is None:
            path.unlink()
        else:
            (tmp_path / "new").write_text(text)
            (tmp_path / "new").replace(path)
        return [(file.look() is not None, file.rules.refusal("http://h.test/a")) for _ in range(2)]  # type: ignore[return-value]

    before = "h.test deny /a"
    assert changed("h.test: {deny: ['(']}") == [(True, before), (False, before)]
    assert changed(None) == [(True, before), (False, before)]
    assert changed("h.test: {}") == [(False, None)] * 2


def test_a_link_that_leads_nowhere_is_said_each_time(tmp_path: Path) -> None:
    """As of a mounted ConfigMap, whose file is the same when the link leads there again."""
    (tmp_path / "rules").write_text("h.test: {deny: [/a]}")
    link = tmp_path / "link"
    link.symlink_to("rules")
    file, said = UrlRulesFile.open({"SITE_URL_RULES": str(link)}), list[bool]()
    for target in ("none", "rules", "none"):
        link.unlink()
        link.symlink_to(target)
        said.append(file.look() is not None)
    assert said == [True, False, True]


def test_no_crawl_begins_without_rules_that_are_just_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read_file = tmp_path / "rules.yaml", library.read_file
    half, whole, written = "h.test: {deny: [", "h.test: {deny: [/a]}", list[str]()

    def read_and_written(*arguments: Any) -> bytes:
        raw = read_file(*arguments)
        if written:
            path.write_text(written.pop())
        return raw

    monkeypatch.setattr(library, "read_file", read_and_written)
    written[:] = [whole]
    assert rules(tmp_path, half).refusal("http://h.test/a") == "h.test deny /a"
    written[:] = [f"{half}{n * '#'}" for n in range(9)]
    with pytest.raises(ConfigError, match="SITE_URL_RULES cannot be used"):
        rules(tmp_path, half)


def test_a_change_that_comes_while_too_many_files_are_open_is_taken_later(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("h.test: {deny: [/a]}")
    file = UrlRulesFile.open({"SITE_URL_RULES": str(path)})
    path.write_text("h.test: {}")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        said = [str(file.look() or "") for _ in range(2)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert ["Too many open files" in one for one in said] == [True, False]
    assert file.look() is file.rules.refusal("http://h.test/a") is None


@pytest.mark.parametrize(
    ("url", "pattern"),
    [
        ("http://h1.test/2024/05/x?page=3", "h1.test/N/N/x?page=N"),
        ("http://h.test/0a1b2c3d4e/x", "h.test/H/x"),
        ("http://h.test/deadbeef-12/cafe", "h.test/deadbeef-N/cafe"),
        ("http://h.test/item_0a1b2c3d4e", "h.test/item_H"),
        ("http://h.test/550e8400-e29b-11d4-abcd-446655440000", "h.test/H"),
        ("http://h.test/a", None),
        ("http://h1.test", None),
    ],
)
def test_a_pattern_has_no_digits_and_no_long_hexadecimal_numbers(url: str, pattern: str | None) -> None:
    assert pattern_of(url) == pattern


def test_endless_urls_take_linear_time() -> None:
    hostile: list[Any] = ["/a" * 4_000, "/1a2b3c4d" * 900, "/" * 8_000, "?" + "1a" * 4_000, "/" + "a" * 8_000]
    for tail in hostile:
        assert len(pattern_of(f"http://h.test{tail}") or "") < 320
        UrlRulesFile.open({"SITE_URL_DENY": "(a+)+$,(a|aa)+b"}).rules.refusal(f"http://h.test{tail}")
