"""`scrapy kibana import` against a stand-in for Kibana, which looks closely at what it is sent."""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
from collections.abc import Callable
from email.parser import BytesParser
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import pytest

from site_spider import runtime
from site_spider.commands.kibana import Kibana
from site_spider.errors import SinkUnavailable, SiteSpiderError
from tests.adapters.raw_server import Asked, Said, answering, said
from tests.commands.project import Project
from tools.kibana import FILE
from tools.site.certificate import tls_for

EXPORT = FILE.read_bytes()
OBJECTS = [json.loads(line) for line in EXPORT.splitlines()[:-1]]
KBN = b"kbn-name: stand-in\r\n"


def uploaded(asked: Asked) -> bytes:
    """The file of a request that Kibana would take, and no other."""
    assert asked.method == "POST"
    assert asked.path.endswith("/api/saved_objects/_import?overwrite=true")
    assert asked.headers["kbn-xsrf"]
    assert "transfer-encoding" not in asked.headers
    kind = asked.headers["content-type"]
    assert re.fullmatch(r"multipart/form-data; boundary=\S+", kind)
    message = BytesParser().parsebytes(f"Content-Type: {kind}\r\n\r\n".encode() + asked.body)
    (part,) = message.get_payload()
    assert part.get_param("name", header="content-disposition") == "file"
    assert part.get_filename().endswith(".ndjson")
    content: bytes = part.get_payload(decode=True)
    return content


def imported(asked: Asked) -> bytes:
    """As Kibana answers when all is well."""
    objects = [json.loads(line) for line in uploaded(asked).splitlines() if b'"exportedCount"' not in line]
    results = [{"type": one["type"], "id": one["id"], "overwrite": True} for one in objects]
    answer = {"successCount": len(objects), "success": True, "warnings": [], "successResults": results}
    return said(answer, more=KBN)


def failing(*errors: Any) -> Callable[[Asked], bytes]:
    def answer(asked: Asked) -> bytes:
        uploaded(asked)
        return said({"successCount": 3, "success": False, "errors": [*errors]}, more=KBN)

    return answer


def refused(status: int, body: Any, more: bytes = KBN) -> Callable[[Asked], bytes]:
    return lambda asked: said(body, status, more=more)


Ran = subprocess.CompletedProcess[str]


def heard_by(run: Callable[..., Ran], path: str, *arguments: str, login: str = "") -> tuple[Asked, Ran, str]:
    """What a stand-in at this URL was asked by the one run of the command."""
    heard: list[Asked] = []

    def answer(asked: Asked) -> bytes:
        heard.append(asked)
        return imported(asked)

    with answering(answer) as url:
        address = url.replace("://", f"://{login}@") if login else url
        ran = run("kibana", "import", "--url", address + path, *arguments)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "wort" not in ran.stdout
    [asked] = heard
    return asked, ran, url


@pytest.mark.parametrize(("count", "code"), [(1, 0), (0, 1)])
def test_success_is_what_the_answer_says_whatever_it_counts(project: Project, count: int, code: int) -> None:
    """Unless nothing at all was imported."""
    with answering(lambda _asked: said({"success": True, "successCount": count}, more=KBN)) as url:
        ran = project.scrapy("kibana", "import", "--url", url)
    assert (ran.returncode, ran.stderr) == (code, "")
    assert ran.stdout.startswith(f"imported {count} of {len(OBJECTS)} objects\n")


def test_all_objects_are_sent_as_they_are(project: Project) -> None:
    asked, ran, url = heard_by(project.scrapy, "/", "--api-key", "c2VjcmV0")
    assert uploaded(asked) == EXPORT
    assert asked.path == "/api/saved_objects/_import?overwrite=true"
    assert asked.headers["authorization"] == "ApiKey c2VjcmV0"
    assert ran.stdout.splitlines()[0] == f"imported {len(OBJECTS)} of {len(OBJECTS)} objects"
    assert f"{url}/app/dashboards#/view/site-spider-dashboard-crawl" in ran.stdout
    assert "c2VjcmV0" not in ran.stdout
    asked, _, _ = heard_by(project.direct, "/base", "--space", "crawl_1")
    assert asked.path == "/base/s/crawl_1/api/saved_objects/_import?overwrite=true"


def login_of(project: Project, *arguments: str, **given: str) -> str | None:
    asked, _, _ = heard_by(project.direct, "", *arguments, **given)
    return asked.headers.get("authorization")


def test_a_user_is_in_the_url_or_an_option_or_a_file(project: Project, tmp_path: Path) -> None:
    wanted = "Basic " + base64.b64encode("elästic:p@ss:wort".encode()).decode()
    file = tmp_path / "user"
    file.write_text("elästic:p@ss:wort\n")
    assert login_of(project, "--user", "elästic:p@ss:wort") == login_of(project, "--user", f"@{file}") == wanted
    assert login_of(project, login="el%C3%A4stic:p%40ss:wort") == wanted
    assert login_of(project) is None


def test_data_views_have_the_indices_of_the_settings(project: Project) -> None:
    asked, _, _ = heard_by(project.scrapy, "", "-s", "SITE_RESULTS_INDEX=mine")
    before, after = EXPORT.decode().splitlines(), uploaded(asked).decode().splitlines()
    ((old, new),) = [(json.loads(old), json.loads(new)) for old, new in zip(before, after, strict=True) if old != new]
    assert new["attributes"].pop("title") == "mine*"
    assert old["attributes"].pop("title") == "site_results*"
    assert old == new


def test_each_object_that_failed_is_said_with_its_reason(project: Project) -> None:
    errors = [
        {"id": "a", "type": "dashboard", "title": "Crawl", "error": {"type": "conflict"}},
        {
            "id": "b", "type": "dashboard", "meta": {"title": "R\x1b[2J"},
            "error": {"type": "missing_references", "references": [{"type": "index-pattern", "id": "x"}]},
        },
        {"id": "c", "type": "lens", "error": {"type": "unknown", "message": "too new", "statusCode": 422}},
        None,
    ]  # fmt: skip
    with answering(failing(*errors)) as url:
        ran = project.scrapy("kibana", "import", "--url", url)
    assert ran.returncode == 1
    assert ran.stderr.splitlines() == [
        "scrapy kibana: dashboard 'Crawl' (a): conflict",
        "scrapy kibana: dashboard 'R\\x1b[2J' (b): it refers to x, which is not there",
        "scrapy kibana: lens (c): unknown too new",
        "scrapy kibana: ? (?): no reason given",
    ]
    assert ran.stdout == f"imported 3 of {len(OBJECTS)} objects\n"
    with answering(failing()) as url:
        ran = project.direct("kibana", "import", "--url", url)
    assert (ran.returncode, "failed without a reason" in ran.stderr) == (1, True)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refused(401, {"statusCode": 401, "message": "no"}), "HTTP 401 (no): give --api-key KEY or --user"),
        (refused(403, {"statusCode": 403, "message": "no"}), "Saved Objects Management"),
        (refused(404, {"statusCode": 404, "message": "[space/crawl] not found"}), "no space 'crawl'"),
        (refused(413, {}), "maxImportPayloadBytes"),
        (refused(503, b"Kibana server is not ready yet"), "is not ready; try again later"),
        (refused(500, {"statusCode": 500, "message": "broken"}), "HTTP 500 (broken): look into the log"),
        (refused(302, b"", b"Location: /login\r\n"), "leads to '/login'"),
        (refused(404, b"<html>nginx", b""), "that is not Kibana"),
        (refused(200, b"<html>hello", b""), "that is not Kibana"),
        (refused(200, {"acknowledged": True}, b""), "that is not Kibana"),
        (refused(200, b"[" * 100_000, b""), "that is not Kibana"),
        (refused(200, {"successCount": True, "success": "x"}, b""), "that is not Kibana"),
        (refused(400, {"error": {"type": "x"}, "status": 400}, b""), "that is not Kibana"),
        (lambda asked: b"\x16\x03\x01 no HTTP\r\n\r\n", "cannot be asked"),
        (lambda asked: b"", "cannot be asked"),
        (lambda asked: chain([b"HTTP/1.1 200 OK\r\n\r\n"], repeat(b" " * 65_536)), "that is not Kibana"),  # endless
        (lambda asked: b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{", "cannot be asked"),
    ],
)
def test_an_answer_that_is_no_success_is_one_line(
    project: Project, answer: Callable[[Asked], Said], words: str
) -> None:
    with answering(answer) as url, pytest.raises(SiteSpiderError) as caught:
        project.direct("kibana", "import", "--url", url, "--space", "crawl")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1_000


def test_an_answer_that_drips_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece arrives within the time of a read; each look at the clock takes 50 s of it."""
    clock = count(0.0, 50.0)
    monkeypatch.setattr(runtime, "monotonic", lambda: next(clock))
    slow = said(b" " * 1_000_000 + b'{"successCount": 0, "success": true}', more=KBN)
    with answering(lambda _asked: slow) as url, pytest.raises(SinkUnavailable, match="within 120 s"):
        Kibana(url).send(b"{}\n")


def test_a_server_that_is_not_there_is_one_line_without_the_password(project: Project) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{closed.getsockname()[1]}"
        ran = project.scrapy("kibana", "import", "--url", f"http://me:geheim-{place[-5:]}@{place}")
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert f"http://{place} cannot be asked: it refuses connections" in ran.stderr
    assert "geheim" not in ran.stderr + ran.stdout


def test_a_server_cannot_say_the_secret(project: Project) -> None:
    """One that repeats what it was sent, as some proxies do."""

    def answer(asked: Asked) -> bytes:
        return said({"statusCode": 401, "message": f"bad {asked.headers['authorization']}"}, 401)

    encoded = base64.b64encode(b"me:geheim").decode()
    with answering(answer) as url:
        ran = project.scrapy("kibana", "import", "--url", url, "--user", "me:geheim")
    assert ran.returncode == 1
    assert encoded not in ran.stderr
    assert "bad Basic ***" in ran.stderr


def test_a_certificate_is_checked_against_the_authority_that_is_given(tmp_path: Path) -> None:
    context, trusted = tls_for("127.0.0.1", tmp_path)
    with answering(lambda _asked: said({"successCount": 0, "success": True}), tls=context) as url:
        assert Kibana(url, ca_cert=str(trusted)).send(b"{}\n") == (0, [])
        with pytest.raises(SinkUnavailable, match="--ca-cert FILE"):
            Kibana(url).send(b"{}\n")
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    with pytest.raises(SinkUnavailable, match="cannot be asked"):
        Kibana("https://127.0.0.1:1", ca_cert=str(wrong)).send(b"{}\n")
