"""The files of a deployment: valid by the schemas of their tools, and true about this project."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner
from scrapy.cmdline import _get_commands_dict

from site_spider.adapters.local.results import LocalSink
from site_spider.service import config as parts
from site_spider.service import environment
from tests.commands.project import ours

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "resources" / "deploy"
KUBERNETES = sorted((DEPLOY / "k8s").glob("*.yaml"))
SCHEMAS = {
    "vendor.compose-spec": [DEPLOY / "compose.yaml", DEPLOY / "stack.yaml"],
    "vendor.gitlab-ci": [ROOT / ".gitlab-ci.yml"],
    "vendor.github-workflows": [*(ROOT / ".github" / "workflows").glob("*.yml")],
}
NO_SCHEMA = ("Kustomization", "ScaledObject")  # kinds of add-ons
OF_SERVERS = ("SITE_SPIDER_IMAGE",)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=300)


def tool(name: str) -> Path:
    """A program that requirements-dev.txt brings."""
    return Path(sys.executable).with_name(name)


def documents(path: Path) -> list[dict[str, Any]]:
    return [*yaml.safe_load_all(path.read_text())]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_file_follows_its_schema(schema: str) -> None:
    extra = ("--data-transform", "gitlab-ci") if schema == "vendor.gitlab-ci" else ()
    files = map(str, SCHEMAS[schema])
    checked = CliRunner().invoke(check_jsonschema, ["--builtin-schema", schema, *extra, *files])
    assert checked.exit_code == 0, checked.output


def test_pipelines_have_the_whole_history_and_the_same_tools_at_night() -> None:
    """Tests of upgrades need the release before."""
    (gitlab,) = documents(ROOT / ".gitlab-ci.yml")
    day, github = (documents(ROOT / ".github" / "workflows" / f"{name}.yml")[0] for name in ("ci", "nightly"))
    assert gitlab["test"]["variables"]["GIT_DEPTH"] == "0"
    assert day["jobs"]["test"]["steps"][0]["with"]["fetch-depth"] == 0
    tools = github["jobs"]["nightly"]["strategy"]["matrix"]["tool"]
    assert [{"TOOL": tools}] == gitlab["nightly"]["parallel"]["matrix"]
    assert len(set(tools)) == len(tools)


def test_kubernetes_takes_the_manifests() -> None:
    """Unknown fields are faults; kinds of add-ons are looked at below."""
    paths = [path for path in KUBERNETES if all(one["kind"] not in NO_SCHEMA for one in documents(path))]
    checked = run(tool("kubernetes-validate"), "--strict", *paths)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout.count("passed for") == sum(len(documents(path)) for path in paths)


def test_the_dockerfile_is_clean() -> None:
    checked = run(tool("hadolint"), ROOT / "Dockerfile")
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize(
    ("given", "tag"),
    [
        *(("", "site-spider"), ("mine --build-arg A=1", "mine"), ("--build-arg A=1", "site-spider")),
        ("'' --build-arg A=1", "site-spider"),  # of a variable without a value
    ],
)
def test_the_tag_of_an_image_may_be_left_out(tmp_path: Path, given: str, tag: str) -> None:
    for name in ("podman", "buildah", "debootstrap", "runc"):
        (tmp_path / name).write_text('#!/bin/sh\necho "$*"\n')
        (tmp_path / name).chmod(0o755)
    built = run("env", f"PATH={tmp_path}:{os.environ['PATH']}", ROOT / "task_shell" / "image.sh", *shlex.split(given))
    assert built.stdout.split("--tag ")[1].startswith(f"{tag} {'--build-arg A=1' if 'A=1' in given else ROOT}")
    assert ("--build-arg A=1" in built.stdout) is ("A=1" in given)


def test_the_quickstart_reaches_no_server_of_the_environment(tmp_path: Path) -> None:
    """Whatever names one: its statistics would go there, or the crawl would not start."""
    (tmp_path / "hosts").write_text("http://es.test:9200")
    script = (ROOT / "task_shell" / "quickstart.sh").read_text()
    choose = "choose_parts() {" + script.split("\nchoose_parts() {")[1].split("\n}\n")[0] + "\n}\n"
    given = ("SITE_STATS_TO=kafka", "SITE_DUPEFILTER=redis", "SITE_KAFKA_EXACTLY_ONCE=true")
    files = (f"{name}_FILE={tmp_path}/hosts" for name in ("SITE_ELASTICSEARCH_HOSTS", "SITE_REDIS_URL"))
    chosen = f"{choose} cd {tmp_path}; fresh=data/new; choose_parts; exec env -0"
    environ = dict(
        line.split("=", 1) for line in run("env", *given, *files, "bash", "-c", chosen).stdout.split("\0")[:-1]
    )
    settings = ours()
    environment.apply_environment(settings, environ)
    assert (settings["SITE_ELASTICSEARCH_HOSTS"], settings["SITE_DUPEFILTER"]) == ("", "memory")
    assert [type(store) for store in parts.statistics_stores(settings)] == [LocalSink]
    assert not parts.exactly_once(settings)


def test_the_unit_is_hardened() -> None:
    """`systemd-analyze security` says 0 for closed, 10 for open."""
    if shutil.which("systemd-analyze") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no systemd-analyze: install systemd")
    checked = run("systemd-analyze", "security", "--offline=true", DEPLOY / "site-spider.service")
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", checked.stdout)
    assert found is not None, checked.stdout + checked.stderr
    assert float(found[1]) < 3


def test_every_setting_that_is_named_exists() -> None:
    known = {*ours(), *environment.FILES, *OF_SERVERS}
    files = [ROOT / "Dockerfile", *(path for path in DEPLOY.rglob("*") if path.is_file())]
    for path in files:
        named = set(re.findall(r"\bSITE_[A-Z_]+\b", path.read_text()))
        assert named <= known, path


def test_every_command_that_is_named_exists() -> None:
    known = _get_commands_dict(ours(), inproject=True).keys()
    for path in ("compose.yaml", "stack.yaml"):
        for name, service in documents(DEPLOY / path)[0]["services"].items():
            if service.get("image", "").startswith(("site-spider", "${SITE_SPIDER_IMAGE")):
                assert service.get("command", ["crawl"])[0] in known, name
    for path in (DEPLOY / "k8s" / "crawler.yaml", DEPLOY / "k8s" / "console.yaml"):
        spec = documents(path)[1]["spec"]["template"]["spec"]
        assert spec["containers"][0]["args"][0] in known


def test_every_file_that_is_mounted_or_listed_exists() -> None:
    services = documents(DEPLOY / "compose.yaml")[0]["services"]
    mounts = [mount for service in services.values() for mount in service.get("volumes", ())]
    sources = [mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    assert sources
    listed = documents(DEPLOY / "k8s" / "kustomization.yaml")[0]["resources"]
    for path in [*(DEPLOY / source for source in sources), *(DEPLOY / "k8s" / name for name in listed)]:
        assert path.exists(), path


def test_a_stop_takes_less_than_what_a_supervisor_waits() -> None:
    needed = ours().getfloat("SITE_STOP_GRACE_SECONDS") + 3
    compose, stack = (documents(DEPLOY / name)[0]["services"] for name in ("compose.yaml", "stack.yaml"))
    pods = documents(DEPLOY / "k8s" / "crawler.yaml")[1]["spec"]["template"]["spec"]
    unit = (DEPLOY / "site-spider.service").read_text()
    waits = [int(services["crawler"]["stop_grace_period"].rstrip("s")) for services in (compose, stack)]
    waits += [pods["terminationGracePeriodSeconds"]]
    waits += [int(line.split("=")[1]) for line in unit.splitlines() if line.startswith("TimeoutStopSec=")]
    assert len(waits) == 4
    assert min(waits) > needed


def test_members_keep_their_names_and_an_old_one_ends_first() -> None:
    """Two processes of one name would fence each other."""
    crawler = documents(DEPLOY / "stack.yaml")[0]["services"]["crawler"]
    assert "{{.Task.Slot}}" in crawler["environment"]["SITE_MEMBER_NAME"]
    assert crawler["deploy"]["update_config"]["order"] == "stop-first"
    assert crawler["deploy"]["update_config"]["failure_action"] == "rollback"
    pods = documents(DEPLOY / "k8s" / "crawler.yaml")[1]
    assert pods["kind"] == "StatefulSet"
    names = {one["name"]: one for one in pods["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert names["SITE_MEMBER_NAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def test_no_service_of_a_namespace_gives_pods_a_setting() -> None:
    """Kubernetes would make SITE_SPIDER_PORT of a service site-spider, and whoever meets it would refuse it."""
    specs = [
        one["spec"]["template"]["spec"]
        for path in KUBERNETES
        for one in documents(path)
        if "template" in one.get("spec", {})
    ]
    assert [spec["enableServiceLinks"] for spec in specs] == [False, False]


def test_the_scaler_names_the_group_and_the_stateful_set() -> None:
    scaler = documents(DEPLOY / "k8s" / "scaling.yaml")[0]
    config = documents(DEPLOY / "k8s" / "config.yaml")[0]["data"]
    trigger = scaler["spec"]["triggers"][0]["metadata"]
    assert scaler["spec"]["scaleTargetRef"]["kind"] == "StatefulSet"
    assert (trigger["consumerGroup"], trigger["topic"], trigger["bootstrapServers"]) == (
        config["SITE_CONSUMER_GROUP"],
        config["SITE_SEED_TOPIC"],
        config["SITE_KAFKA_BROKERS"],
    )


@pytest.mark.parametrize("address", ["127.0.0.1:1", "'127.0.0.1:1'", "nowhere", ""])
def test_a_container_shows_whether_its_loop_turns(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The health check of the image, where nothing listens and with an address that is none."""
    monkeypatch.setenv("SITE_METRICS_ADDRESS", address)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(DEPLOY / "healthy.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert (ended.value.code, "SITE_METRICS_ADDRESS" in said) == (1, True)
    assert ("Connection refused" in said) == ("127" in address)


def test_secrets_stand_in_no_file() -> None:
    """What compose.yaml has is for one machine, and stack.yaml and Kubernetes name external secrets."""
    stack = documents(DEPLOY / "stack.yaml")[0]
    assert all(secret == {"external": True} for secret in stack["secrets"].values())
    kinds = [document["kind"] for path in KUBERNETES for document in documents(path)]
    assert "Secret" not in kinds
    assert "password" not in json.dumps(stack)
