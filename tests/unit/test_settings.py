"""Settings are strict: an unknown, mistyped or dangerous value is refused by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from typer.testing import CliRunner

from include.cli.main import app
from include.ground.errors import mask_secrets
from include.ground.ports import given_port
from include.ground.settings import (
    PREFIX,
    InvalidSetting,
    Settings,
    list_settings,
    load_settings,
    reject_unsafe,
)
from include.ground.settings_profiles import KNOBS, PURPOSES, RETIRED, profile_values


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


def test_unknown_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, "HEADRACE_STATEE", "/tmp/x")
    assert error.key == "HEADRACE_STATEE"
    assert "headrace settings" in error.remedy


@pytest.mark.parametrize("name", RETIRED)
def test_setting_of_an_earlier_version_is_refused_with_what_takes_its_place(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert RETIRED[name] in refused(monkeypatch, f"{PREFIX}{name}", "1").what
    assert name.lower() not in Settings.model_fields


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.cores.max": "0"},
        {"spark.executor.cores": "two"},
        {"spark.executor.memory": "1 GB"},
        {"spark.executor.memory": "1gb\n"},
    ],
)
def test_size_of_a_cluster_that_we_cannot_read_is_refused(
    monkeypatch: pytest.MonkeyPatch, conf: dict[str, str]
) -> None:
    error = refused(monkeypatch, "HEADRACE_SPARK_CONF", json.dumps(conf))
    assert (error.key, next(iter(conf)) in error.what) == ("HEADRACE_SPARK_CONF", True)


@pytest.mark.parametrize(
    ("console", "starts", "port", "url"),
    [
        ("on", True, 0, ""),
        ("off", False, 0, ""),
        ("8081", True, 8081, ""),
        ("http://host:81", False, 0, "http://host:81"),
    ],
)
def test_console_is_started_at_a_port_or_is_elsewhere(console: str, starts: bool, port: int, url: str) -> None:
    found = Settings(console=console)
    assert (found.starts_console, given_port(found.console), found.console_url) == (starts, port, url)


def test_batch_takes_a_twelfth_of_a_small_heap() -> None:
    assert [Settings(driver_memory=heap).batch_bytes >> 20 for heap in ("1200m", "3g", "8g")] == [100, 256, 256]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HEADRACE_KAFKA_PORT", "ninety"),
        ("HEADRACE_KAFKA_PORT", "70000"),
        ("HEADRACE_DRIVER_CORES", "0"),
        ("HEADRACE_DRIVER_MEMORY", "3 GB"),
        ("HEADRACE_SPARK_MASTER", "local[2]"),
        ("HEADRACE_LEASE_URL", "sqlite:///leases"),
        ("HEADRACE_LEASE_SECONDS", "1"),
        ("HEADRACE_CONSOLE", "yes"),
        ("HEADRACE_METRICS", "70000"),
        ("HEADRACE_TRIGGER_SECONDS", "-1"),
        ("HEADRACE_BATCH_RECORDS", ""),
        ("HEADRACE_SPARK_CONF", "{not json"),
        ("HEADRACE_SPARK_CONF", "[1]"),
        ("HEADRACE_KAFKA_OPTIONS", '{"fetch.max.bytes": {"a": 1}}'),
    ],
)
def test_wrong_value_is_refused_with_its_name_and_value(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    error = refused(monkeypatch, name, value)
    assert error.key == name
    assert "value: " in error.what


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
def test_dangerous_value_is_refused_and_named(monkeypatch: pytest.MonkeyPatch, name: str, key: str, value: str) -> None:
    assert refused(monkeypatch, name, json.dumps({key: value})).key == key


def test_harmless_values_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SPARK_CONF", '{"spark.sql.session.timeZone": "UTC", "spark.ui.enabled": "true"}')
    monkeypatch.setenv("HEADRACE_KAFKA_OPTIONS", '{"failOnDataLoss": "true"}')
    assert load_settings().spark_conf["spark.ui.enabled"] == "true"
    reject_unsafe("kafka.isolation.level", "read_committed")


def test_settings_list_has_every_setting_with_a_meaning() -> None:
    knobs = list_settings({})
    assert [knob.name for knob in knobs] == [
        *(f"{PREFIX}{name.upper()}" for name in Settings.model_fields),
        "HEADRACE_FAILPOINT",
    ]
    assert all(knob.meaning and knob.value == knob.default and knob.is_default for knob in knobs)


def test_settings_lists_given_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DRIVER_CORES", "4")
    result = CliRunner().invoke(app, ["settings", "--json"])
    assert result.exit_code == 0
    cores = next(knob for knob in json.loads(result.stdout) if knob["name"] == "HEADRACE_DRIVER_CORES")
    assert (cores["value"], cores["default"], cores["origin"]) == ("4", "2", "environment")


@pytest.mark.parametrize("profile", PURPOSES)
def test_profile_sets_its_knobs_and_no_other_setting(monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    defaults = Settings().model_dump()
    monkeypatch.setenv("HEADRACE_PROFILE", profile)
    assert load_settings().model_dump() == defaults | {"profile": profile} | profile_values(profile)
    assert {info.name for info in list_settings() if info.origin == f"profile {profile}"} == {
        f"{PREFIX}{setting.upper()}" for setting in profile_values(profile)
    }


def test_given_setting_wins_over_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PROFILE", "small")
    monkeypatch.setenv("HEADRACE_DRIVER_MEMORY", "2g")
    found = load_settings()
    assert (found.driver_memory, found.driver_cores) == ("2g", 1)
    assert Settings(driver_cores=3).driver_cores == 3
    shown = {info.name: (info.value, info.origin) for info in list_settings()}
    assert shown["HEADRACE_DRIVER_MEMORY"] == ("2g", "environment")
    assert shown["HEADRACE_DRIVER_CORES"] == ("1", "profile small")


def test_profile_of_an_argument_wins_over_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PROFILE", "small")
    assert Settings(profile="fresh").driver_memory == "3g"


def test_unknown_profile_is_refused_with_the_known_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, "HEADRACE_PROFILE", "smal")
    assert (error.key, "'fresh', 'throughput' or 'small'" in error.what) == ("HEADRACE_PROFILE", True)


def test_profiles_are_listed_with_every_knob_and_its_reason() -> None:
    shown = CliRunner().invoke(app, ["settings", "--profiles"], env={"COLUMNS": "1000"}).stdout
    assert all(f"{PREFIX}{knob.setting.upper()}" in shown and knob.reason in shown for knob in KNOBS)


def test_line_of_a_setting_is_whole_when_the_output_is_a_file() -> None:
    lines = CliRunner().invoke(app, ["settings"]).stdout.splitlines()
    for info in list_settings():
        assert any({info.name, *info.meaning.split()} <= set(line.split()) for line in lines), info.name


def test_interval_that_looks_like_a_hang_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STALL_SECONDS", "60")
    assert refused(monkeypatch, "HEADRACE_TRIGGER_SECONDS", "60").key == "HEADRACE_TRIGGER_SECONDS"


def test_interval_that_nobody_has_set_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_STALL_SECONDS", "1")
    assert load_settings().stall_seconds == 1


def test_settings_lists_and_marks_refused_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DRIVER_CORES", "many")
    result = CliRunner().invoke(app, ["settings"])
    assert "many" in result.stdout
    assert isinstance(result.exception, InvalidSetting)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@host/db", "postgresql://***@host/db"),
        ("postgresql://me:a:b/c@host/db", "postgresql://***@host/db"),
        ("sqlite:////a/path", "sqlite:////a/path"),
        ("/a/path", "/a/path"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert mask_secrets(url) == shown


def test_help_imports_no_heavy_package() -> None:
    script = (
        "import sys, include.cli.main;"
        "print([m for m in ('pydantic', 'polars', 'duckdb', 'pyspark', 'deltalake', 'confluent_kafka', 'sqlalchemy')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_error_message_is_not_interpreted_as_markup(command_line: CommandLine) -> None:
    ended = command_line("status", HEADRACE_DRIVER_MEMORY="[bold]3g[/nope]")
    assert ended.code == 2
    assert "[bold]3g[/nope]" in ended.errors


@pytest.mark.parametrize("name", ["HEADRACE_STATE", "HEADRACE_DATASETS", "HEADRACE_JARS"])
@pytest.mark.parametrize("value", ["", "  "])
def test_empty_folder_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    error = refused(monkeypatch, name, value)
    assert (error.key, "empty" in error.what) == (name, True)


def test_state_folder_that_is_a_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for value in (tmp_path / "file", tmp_path / "file" / "below"):
        error = refused(monkeypatch, "HEADRACE_STATE", str(value))
        assert (error.key, "not a folder" in error.what) == ("HEADRACE_STATE", True)
        load_settings.cache_clear()


def test_state_folder_that_cannot_be_created_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, "HEADRACE_STATE", "/proc/x")
    assert (error.key, "cannot be created in /proc" in error.what) == ("HEADRACE_STATE", True)


def test_state_folder_is_not_created_by_reading_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path / "new" / "state"))
    assert load_settings().state == tmp_path / "new" / "state"
    assert list(tmp_path.iterdir()) == []


def test_datasets_folder_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, "HEADRACE_DATASETS", "/nope")
    assert (error.key, "/nope does not exist" in error.what) == ("HEADRACE_DATASETS", True)


@pytest.mark.parametrize(
    ("name", "value", "least"),
    [
        ("HEADRACE_DRIVER_MEMORY", "1m", "512m"),
        ("HEADRACE_DRIVER_MEMORY", "511m", "512m"),
        ("HEADRACE_DRIVER_MEMORY", "0g", "512m"),
        ("HEADRACE_SPARK_CONF", '{"spark.executor.memory": "100m"}', "512m"),
    ],
)
def test_heap_too_small_to_start_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, least: str) -> None:
    error = refused(monkeypatch, name, value)
    assert (error.key, f"at least {least}" in error.what) == (name, True)


@pytest.mark.parametrize(
    ("command", "variable", "value"),
    [
        ("status", "HEADRACE_STATE", ""),
        *((command, "HEADRACE_STATE", "/proc/x") for command in ("up", "status", "down")),
        *((command, "HEADRACE_STATE", __file__) for command in ("up", "status", "down")),
        *((command, "HEADRACE_DATASETS", "/nope") for command in ("up", "status")),
    ],
)
def test_commands_refuse_unusable_folders_with_exit_2(
    tmp_path: Path, command_line: CommandLine, command: str, variable: str, value: str
) -> None:
    ended = command_line(command, **{"HEADRACE_STATE": str(tmp_path / "state"), variable: value})
    assert ended.code == 2
    assert f"headrace: setting {variable}: " in ended.errors


def test_leases_of_several_hosts_need_a_kafka_and_a_runner_that_outlive_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, "HEADRACE_LEASE_URL", "postgresql://headrace@db/leases")
    assert error.key == "HEADRACE_LEASE_URL"
    assert "HEADRACE_RUNNER=service and HEADRACE_KAFKA_BOOTSTRAP" in error.what
    monkeypatch.setenv("HEADRACE_RUNNER", "service")
    monkeypatch.setenv("HEADRACE_KAFKA_BOOTSTRAP", "kafka:9092")
    assert load_settings().lease_seconds == 30


def test_hosts_with_own_disks_need_leases_and_tables_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, "HEADRACE_LEASE_DOMAIN", "meters")
    assert error.key == "HEADRACE_LEASE_DOMAIN"
    assert "needs HEADRACE_LEASE_URL and HEADRACE_WAREHOUSE=s3a://" in error.what
    for name, value in {"RUNNER": "service", "KAFKA_BOOTSTRAP": "kafka:9092", "LEASE_URL": "postgresql://db/x"}.items():
        monkeypatch.setenv(f"HEADRACE_{name}", value)
    assert refused(monkeypatch, "HEADRACE_WAREHOUSE", "s3://tables").key == "HEADRACE_LEASE_DOMAIN"
    monkeypatch.setenv("HEADRACE_BACKEND", "spark")
    monkeypatch.setenv("HEADRACE_WAREHOUSE", "s3a://tables")
    assert load_settings().lease_domain == "meters"
