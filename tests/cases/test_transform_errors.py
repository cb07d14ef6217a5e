"""Records on which silver.py fails are rejected alone, with the same verdict in the stream and in every rebuild."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession
from slice_patcher import SlicePatcher, copy_release
from small_events import observation
from small_release import Record, SmallRelease, small_release

from include.change.reinstate import record_spans
from include.declare.history_slice import Slice
from include.ground.settings import CLONE, Settings
from spark_jobs.backends.local import prepared_query
from spark_jobs.layers import silver_code
from spark_jobs.layers.gold_layer import GoldFailed
from spark_jobs.layers.silver_code import TransformationFailed, most_tolerated, record_error

BODY = "    return accepted\n"
FAILING = """
    from pyspark.sql import functions as F

    later = "unix_seconds(observed_at + make_ym_interval(int(wind_dir) * 1000, 0))"
    return accepted.withColumn("inverse", F.expr("1 / dewp")).withColumn("later", F.expr(later))
"""
PYTHON = """
    from pyspark.sql import functions as F

    @F.udf("string")
    def checked(value):
        if value == 13:
            raise ValueError("thirteen, password=hunter2, at 0x7f00deadbeef" + "!" * 400)
        return "fine"

    return accepted.withColumn("checked", checked("wind_dir"))
"""
DIVIDED, ESCAPED, OVERFLOWN = (0, 101), (0, 102), (1, 5001)
FAILED = Slice(record_spans([DIVIDED, ESCAPED, OVERFLOWN]))
Verdicts = dict[tuple[int, int], tuple[str, str]]


def event(hour: int, dewp: str = "4", wind_dir: str = "20", partition: int = 0) -> Record:
    return observation(f"2013-02-01T{hour:02d}", dewp=dewp, wind_dir=wind_dir, partition=partition)


def failing_dataset(parent: Path, body: str = FAILING) -> Path:
    folder = Path(shutil.copytree(CLONE / "include" / "datasets" / "weather", parent / "weather"))
    text = (folder / "silver.py").read_text("utf-8")
    (folder / "silver.py").write_text(text.replace(BODY, body), "utf-8")
    pipeline = (folder / "pipeline.yaml").read_text("utf-8")
    (folder / "pipeline.yaml").write_text(pipeline.replace("{max: wind_speed}", '{max: "1 / wind_speed"}'), "utf-8")
    return folder


def correct(folder: Path) -> None:
    text = (folder / "silver.py").read_text("utf-8")
    (folder / "silver.py").write_text(text.replace("1 / dewp", "try_divide(1, dewp)").replace("1000", "1"), "utf-8")


def verdicts(release: SmallRelease) -> Verdicts:
    """Return rule and detail of each rejected record; every bronze record is in one table, once."""
    rejected = {(r["_partition"], r["_offset"]): r["reasons"][0] for r in release.rejected().to_dicts()}
    silver = release.silver().select("_partition", "_offset").rows()
    assert sorted([*silver, *rejected]) == sorted(release.read("bronze.weather").select("partition", "offset").rows())
    return {place: (reason["rule"], reason["detail"] or "") for place, reason in rejected.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset whose silver.py divides by `dewp` and overflows where `wind_dir` is large; gold divides, too."""
    return failing_dataset(tmp_path_factory.mktemp("datasets"))


@pytest.fixture(scope="module")
def production(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, folder: Path) -> SmallRelease:
    """Return a release that refined two batches in one run."""
    release = small_release(spark, Settings(state=tmp_path_factory.mktemp("failing")), "weather", folder)
    release.ingest([event(0), event(1, dewp="0"), event(2, dewp='0,"humid":1e1')])
    release.ingest([event(3, partition=1), event(4, wind_dir="360", partition=1), event(5), Record(b"broken")])
    with pytest.MonkeyPatch.context() as patch:
        # Two failing records of a batch are tolerated, three of a run.
        patch.setattr(silver_code, "ALWAYS_TOLERATED", 2)
        release.refine(0, 1)
    return release


def test_failing_records_are_rejected_with_the_error_and_all_others_accepted(production: SmallRelease) -> None:
    found = verdicts(production)
    assert {place: rule for place, (rule, _) in found.items()} == {
        **dict.fromkeys((DIVIDED, ESCAPED, OVERFLOWN), "transform_error"),
        (0, 104): "malformed",
    }
    assert found[DIVIDED][1].startswith("SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero.")
    assert found[ESCAPED] == found[DIVIDED]
    assert found[OVERFLOWN][1] == "ArithmeticException: long overflow"
    assert set(production.rejected()["disposition"]) == {"invalid"}


def test_failing_records_alone_have_the_same_verdict(production: SmallRelease, tmp_path: Path) -> None:
    patcher = SlicePatcher(copy_release(production, tmp_path / "state"), tmp_path)
    assert set(patcher.rebuild(FAILED)[2].values()) == {0}


@pytest.mark.extended
def test_corrected_code_reinstates_failing_records(production: SmallRelease, tmp_path: Path) -> None:
    patcher = SlicePatcher(copy_release(production, tmp_path / "state"), tmp_path)
    patch, _, differing = patcher.rebuild(FAILED, correct)
    assert (differing["silver.weather"], differing["rejected.weather"]) == (3, 3)
    patcher.apply(patch)
    assert [rule for rule, _ in verdicts(patcher.production).values()] == ["malformed"]


def test_code_that_fails_on_too_many_records_of_a_batch_halts(
    production: SmallRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silver_code, "ALWAYS_TOLERATED", 1)
    release = copy_release(production, tmp_path / "state")
    number = release.ingest([event(6), event(7, dewp="0"), event(8, dewp="0")])
    with pytest.raises(TransformationFailed, match="fails on 2 or more records of batch 2; nothing was") as refused:
        release.refine(number, number)
    assert "The first is partition 0 offset 106: SparkArithmeticException: [DIVIDE_BY_ZERO]" in refused.value.what
    assert refused.value.remedy.endswith("headrace release run --dataset weather")
    assert release.refined() == number - 1


def test_gold_expression_that_fails_halts_and_names_the_table(production: SmallRelease, tmp_path: Path) -> None:
    release = copy_release(production, tmp_path / "state")
    calm = observation("2013-02-01T09", dewp="4", wind_dir="20", wind_speed="0")
    with pytest.raises(GoldFailed, match=r"gold.weather_days fails on rows of silver, SparkArithmeticException: \[DIV"):
        release.refine(release.refined() + 1, release.ingest([calm]))
    assert verdicts(release) == verdicts(production)


@pytest.mark.parametrize(("rows", "tolerated"), [(1, 10), (100, 10), (500, 50), (1_000, 100), (1_000_000, 100)])
def test_a_tenth_of_a_batch_may_fail_within_bounds(rows: int, tolerated: int) -> None:
    assert most_tolerated(rows) == tolerated


def test_errors_of_the_machine_are_not_isolated() -> None:
    assert record_error(OSError("no space left on device")) is None
    assert record_error(ValueError("raised by silver() itself, before any record")) is None


class InTheJvm(Exception):
    """An error whose cause is in the JVM."""

    def __init__(self, raised: str) -> None:
        trace = f'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n{raised}\n'
        self._origin = Mock()
        self._origin.toString.return_value = f"org.apache.spark.api.python.PythonException: {trace}"


def test_a_host_with_another_python_is_no_error_of_the_record() -> None:
    module = "pyspark.errors.exceptions.base"
    assert record_error(InTheJvm(f"{module}.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.12 and 3.11")) is None
    assert record_error(InTheJvm(f"{module}.PySparkTypeError: [NOT_INT] text")) == "PySparkTypeError: [NOT_INT] text"
    assert record_error(InTheJvm("ValueError: no number")) == "ValueError: no number"


@pytest.mark.extended
def test_python_function_fails_on_one_record(spark: SparkSession, tmp_path: Path) -> None:
    release = small_release(spark, Settings(state=tmp_path), "weather", failing_dataset(tmp_path, PYTHON))
    release.take([event(0), event(1, wind_dir='20,"humid":1e1'), event(2, wind_dir="13")])
    ((place, (rule, detail)),) = verdicts(release).items()
    assert (place, rule, len(detail)) == ((0, 102), "transform_error", 300)
    assert detail.startswith("ValueError: thirteen, password=*** at 0x…!!!")


@pytest.mark.extended
def test_function_that_lacks_a_file_halts(spark: SparkSession, tmp_path: Path) -> None:
    body = PYTHON.replace("ValueError(", "FileNotFoundError(")
    release = small_release(spark, Settings(state=tmp_path), "weather", failing_dataset(tmp_path, body))
    with pytest.raises(Exception, match="FileNotFoundError"):
        release.take([event(0), event(1, wind_dir="13")])
    assert release.refined() == -1


@pytest.mark.extended
def test_complete_tasks_of_a_failed_job_leave_no_rows(
    spark: SparkSession, production: SmallRelease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record is a task; the one that fails has the smallest file and so runs last."""
    monkeypatch.setattr(prepared_query, "SLOT_BYTES", 0)
    release, settings = copy_release(production, tmp_path / "state"), ("maxRecordsPerFile", "minPartitionNum")
    before = {name: spark.conf.get(f"spark.sql.files.{name}", None) for name in settings}
    longer = ['20,"temp":39.02,"humid":59.37,"pressure":1012.5e0'] * 5
    try:
        spark.conf.set("spark.sql.files.maxRecordsPerFile", "1")
        spark.conf.set("spark.sql.files.minPartitionNum", "6")
        number = release.ingest([*(event(9 + n, wind_dir=more) for n, more in enumerate(longer)), event(8, dewp="0")])
        release.refine(number, number)
    finally:
        for name, value in before.items():
            spark.conf.set(f"spark.sql.files.{name}", value) if value else spark.conf.unset(f"spark.sql.files.{name}")
    assert len(verdicts(release)) == len(verdicts(production)) + 1
