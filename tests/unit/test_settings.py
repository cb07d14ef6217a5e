"""Settings are strict: what is unknown, of the wrong type or dangerous is refused, and the refusal names it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from include.cli.main import app
from include.settings import (
    PREFIX,
    InvalidSetting,
    Settings,
    list_settings,
    load_settings,
    reject_unsafe,
    without_password,
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    load_settings.cache_clear()
    yield
    load_settings.cache_clear()


def refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> InvalidSetting:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSetting) as caught:
        load_settings()
    return caught.value


def test_an_unknown_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, "HEADRACE_STATEE", "/tmp/x")
    assert error.key == "HEADRACE_STATEE"
    assert "headrace settings" in error.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADRACE_KAFKA_PORT", "ninety"),
        ("HEADRACE_KAFKA_PORT", "70000"),
        ("HEADRACE_DRIVER_CORES", "0"),
        ("HEADRACE_DRIVER_MEMORY", "3 GB"),
        ("HEADRACE_TRIGGER_SECONDS", "-1"),
        ("HEADRACE_BATCH_RECORDS", ""),
        ("HEADRACE_SPARK_CONF", "{not json"),
        ("HEADRACE_SPARK_CONF", "[1]"),
        ("HEADRACE_KAFKA_OPTIONS", '{"fetch.max.bytes": {"a": 1}}'),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_what_was_given(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    error = refused(monkeypatch, name, value)
    assert error.key == name
    assert "given" in error.what


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("HEADRACE_KAFKA_OPTIONS", "failOnDataLoss", "false"),
        ("HEADRACE_KAFKA_OPTIONS", "FAILONDATALOSS", "FALSE"),
        ("HEADRACE_KAFKA_OPTIONS", "kafka.isolation.level", "read_uncommitted"),
        ("HEADRACE_KAFKA_OPTIONS", "startingOffsets", "latest"),
        ("HEADRACE_SPARK_CONF", "spark.sql.session.timeZone", "Europe/Paris"),
        ("HEADRACE_SPARK_CONF", "spark.sql.ansi.enabled", "false"),
        ("HEADRACE_SPARK_CONF", "spark.sql.caseSensitive", "false"),
    ],
)
def test_a_dangerous_value_is_refused_and_named(
    monkeypatch: pytest.MonkeyPatch, name: str, key: str, value: str
) -> None:
    assert refused(monkeypatch, name, json.dumps({key: value})).key == key


def test_harmless_values_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SPARK_CONF", '{"spark.sql.session.timeZone": "UTC", "spark.ui.enabled": "true"}')
    monkeypatch.setenv("HEADRACE_KAFKA_OPTIONS", '{"failOnDataLoss": "true"}')
    assert load_settings().spark_conf["spark.ui.enabled"] == "true"
    reject_unsafe("kafka.isolation.level", "read_committed")


def test_the_list_has_every_setting_with_a_meaning() -> None:
    knobs = list_settings({})
    assert [knob.name for knob in knobs] == [f"{PREFIX}{name.upper()}" for name in Settings.model_fields]
    assert all(knob.meaning and knob.value == knob.default and not knob.given for knob in knobs)


def test_settings_lists_given_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DRIVER_CORES", "4")
    result = CliRunner().invoke(app, ["settings", "--json"])
    assert result.exit_code == 0
    cores = next(knob for knob in json.loads(result.stdout) if knob["name"] == "HEADRACE_DRIVER_CORES")
    assert (cores["value"], cores["default"], cores["given"]) == ("4", "2", True)


def test_settings_lists_refused_values_too_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DRIVER_CORES", "many")
    result = CliRunner().invoke(app, ["settings"])
    assert "many" in result.stdout
    assert isinstance(result.exception, InvalidSetting)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:a:b/c@host/db", "postgresql://me:***@host/db"),
        ("sqlite:////a/path", "sqlite:////a/path"),
        ("/a/path", "/a/path"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys, include.cli.main;"
        "print([m for m in ('pydantic', 'polars', 'duckdb', 'pyspark', 'deltalake', 'confluent_kafka', 'sqlalchemy')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_an_error_is_printed_as_it_is_not_as_markup() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "include.cli.main", "status"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "HEADRACE_DRIVER_MEMORY": "[bold]3g[/nope]"},
    )
    assert done.returncode == 2
    assert "[bold]3g[/nope]" in done.stderr
    assert "Traceback" not in done.stderr
