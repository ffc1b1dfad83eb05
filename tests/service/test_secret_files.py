"""Settings that can hold a secret, read from files."""

from __future__ import annotations

from pathlib import Path

import pytest
from scrapy.settings import Settings

from site_spider.errors import ConfigError
from site_spider.secrets import secrets_of
from site_spider.service.environment import SECRETS, apply_environment, check_names


def settings_of(environ: dict[str, str], **cmdline: str) -> Settings:
    settings = Settings()
    settings.setmodule("site_spider.settings", priority="project")
    settings.update(cmdline, priority="cmdline")
    apply_environment(settings, environ)
    return settings


@pytest.mark.parametrize("name", SECRETS)
def test_a_file_holds_what_the_variable_would(tmp_path: Path, name: str) -> None:
    file = tmp_path / "secret"
    file.write_text(' {"sasl.password": "hunter22"}\n')
    environ = {f"{name}_FILE": str(file)}
    settings = settings_of(environ)
    assert settings[name] == '{"sasl.password": "hunter22"}'
    assert "hunter22" in secrets_of(settings)
    check_names(settings, environ)


def test_a_path_may_be_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("0123456789abcdef\n")
    settings = settings_of({}, SITE_SPILL_KEY_FILE=str(file))
    assert settings["SITE_SPILL_KEY"] == "0123456789abcdef"
    check_names(settings, {})


def test_the_command_line_comes_before_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("of the file")
    settings = settings_of({"SITE_SPILL_KEY_FILE": str(file)}, SITE_SPILL_KEY="of the command line")
    assert settings["SITE_SPILL_KEY"] == "of the command line"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), (b"", "is empty"), (b"\xff\xfe", "not UTF-8"), (b"x" * 1_000_001, "more than")],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    environ = {"SITE_REDIS_URL_FILE": str(file)}
    with pytest.raises(ConfigError, match=f"SITE_REDIS_URL_FILE.*{reason}"):
        check_names(settings_of(environ), environ)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    environ = {"SITE_SPILL_KEY_FILE": str(tmp_path)}
    with pytest.raises(ConfigError, match="Is a directory"):
        check_names(settings_of(environ), environ)


def test_a_setting_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("redis://one")
    environ = {"SITE_REDIS_URL_FILE": str(file), "SITE_REDIS_URL": "redis://two"}
    with pytest.raises(ConfigError, match="both in the environment"):
        check_names(settings_of(environ), environ)
