"""Settings are strict, and the running session has the values that the guarantees need."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from pydantic import ValidationError
from pyspark.errors import AnalysisException, ArithmeticException, NumberFormatException
from pyspark.sql import SparkSession
from source_tree import Module, code

from include.ground.errors import Terminal
from include.ground.settings import InvalidSetting, Settings, load_settings, reject_unknown, reject_unsafe
from include.ground.settings_profiles import DECIDED, KNOBS
from spark_jobs.backends.spark_session import GUARDED, open_session, verify_guarded

READ_WHILE_LOADING = {"profile"}
"""The profile is in the values that it sets."""
# Every setting of FAULTS 43, as somebody would write it.
HARMFUL = {
    "failOnDataLoss": "false",
    "kafka.isolation.level": "read_uncommitted",
    "startingOffsets": "latest",
    "spark.sql.session.timeZone": "Europe/Berlin",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.streaming.checkpoint.verifyMetadataExists.enabled": "false",
    "spark.sql.caseSensitive": "FALSE",
    "spark.hadoop.fs.defaultFS": "hdfs://names:9000",
}


@pytest.mark.parametrize("key", HARMFUL)
@pytest.mark.parametrize("field", ["spark_conf", "kafka_options"])
def test_dangerous_values_are_refused(key: str, field: str) -> None:
    with pytest.raises(InvalidSetting, match="would break a guarantee") as refused:
        Settings(**{field: {key.upper(): HARMFUL[key]}})  # type: ignore[arg-type]
    assert refused.value.key == key.upper()


def test_every_dangerous_setting_has_a_case() -> None:
    assert {key.lower() for key in HARMFUL} == DECIDED


@pytest.mark.parametrize("value", ["UTC", "utc"])
def test_utc_is_accepted(value: str) -> None:
    reject_unsafe("spark.sql.session.timeZone", value)


@pytest.mark.parametrize("name", ["HEADRACE_STAT", "HEADRACE_", "HEADRACE_state"])
def test_unknown_variable_is_refused(name: str) -> None:
    with pytest.raises(InvalidSetting, match="does not exist"):
        reject_unknown({"PATH": "", name: "x"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kafka_port", "70000"),
        ("kafka_port", "many"),
        ("driver_memory", "2 GB"),
        ("driver_cores", "0"),
        ("batch_records", "0"),
        ("refine_records", "-1"),
        ("trigger_seconds", "-0.1"),
    ],
)
def test_value_of_the_wrong_type_names_its_key(field: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"HEADRACE_{field.upper()}", value)
    load_settings.cache_clear()
    with pytest.raises(InvalidSetting) as refused:
        load_settings()
    assert refused.value.key == f"HEADRACE_{field.upper()}"


@pytest.fixture(autouse=True)
def _settings_are_read_anew() -> None:
    load_settings.cache_clear()


def test_every_setting_is_read() -> None:
    """A knob that nothing reads is dead: remove it. Validators of settings.py do not count, its properties do."""
    read = {node.attr for module in code() for node in _attributes(module)}
    assert [name for name in Settings.model_fields if name not in read | READ_WHILE_LOADING] == []


def _attributes(module: Module) -> Iterator[ast.Attribute]:
    parts: list[ast.AST] = [module.tree]
    if module.path == "include/ground/settings.py":
        found = (node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef))
        parts = [node for node in found if "property" in map(ast.unparse, node.decorator_list)]
    yield from (node for part in parts for node in ast.walk(part) if isinstance(node, ast.Attribute))


def test_every_knob_of_a_profile_is_a_setting_and_says_why() -> None:
    assert {knob.setting for knob in KNOBS} <= Settings.model_fields.keys()
    assert all(knob.reason and knob.measured for knob in KNOBS)


def test_settings_are_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().kafka_port = 1  # type: ignore[misc]


@pytest.mark.parametrize("key", GUARDED)
def test_session_has_the_guarded_values(key: str, spark: SparkSession) -> None:
    assert str(spark.conf.get(key)).lower() == GUARDED[key].lower()


@pytest.mark.parametrize(("key", "value"), [(key, HARMFUL.get(key, "false")) for key in GUARDED])
def test_session_without_a_guarded_value_is_refused(key: str, value: str, spark: SparkSession) -> None:
    other = spark.newSession()
    other.conf.set(key, value)
    with pytest.raises(Terminal, match="nothing was read") as refused:
        verify_guarded(other)
    assert (refused.value.code, refused.value.facts) == ("guarded-setting", {"key": key})
    verify_guarded(spark)


def test_settings_cannot_override_guarded_values(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Even where the check of the settings was passed by: the session itself refuses."""
    settings = Settings(state=tmp_path_factory.mktemp("spark"))
    passed_by = settings.model_copy(update={"spark_conf": {"spark.sql.session.timeZone": "Europe/Berlin"}})
    with pytest.raises(InvalidSetting, match="timeZone"):
        open_session(passed_by, "not to be opened")


def one(spark: SparkSession, sql: str) -> object:
    rows = spark.sql(sql).collect()
    return rows[0][0]


def test_sql_and_jvm_use_utc(spark: SparkSession) -> None:
    assert one(spark, "select current_timezone()") == "UTC"
    assert one(spark, "select cast(timestamp '2013-03-10 02:30:00' as string)") == "2013-03-10 02:30:00"
    assert spark._jvm is not None
    assert spark._jvm.java.util.TimeZone.getDefault().getID() == "UTC"


def test_invalid_arithmetic_is_an_error(spark: SparkSession) -> None:
    with pytest.raises(NumberFormatException):
        one(spark, "select cast('x' as int)")
    with pytest.raises(ArithmeticException):
        one(spark, "select 2147483647 + 1")


def test_column_names_are_case_sensitive(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException):
        one(spark, "select Kind from (select 1 as kind)")


def test_jvm_keeps_its_temporary_files_in_the_state_folder(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    folder = jvm.java.lang.System.getProperty("java.io.tmpdir")
    scratch = spark.sparkContext.getConf().get("spark.local.dir", "")
    assert scratch
    assert folder.startswith(f"{scratch}/temporary/")
