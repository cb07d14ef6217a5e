"""Code of a release that cannot be used: the refusal names file, line and key, before any table is created."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from include.declare.dataset import load_dataset, snapshot_dataset
from include.declare.yaml_declarations import DeclarationRefused
from include.ground.paths import silver_path
from include.ground.settings import CLONE, Settings
from spark_jobs.backends.release import open_release

BODY = "    return accepted\n"
CASES: dict[str, tuple[str, str, str, str]] = {
    "raises": ("silver.py", BODY, "    return accepted.colour\n", "silver.py:10: PySparkAttributeError"),
    "unknown name": ("silver.py", BODY, "    return acepted\n", "silver.py:10: NameError"),
    "unknown column": ("silver.py", BODY, '    return accepted.select("colour")\n', "silver.py:10: AnalysisException"),
    "returns nothing": ("silver.py", BODY, "    accepted.columns\n", "silver.py:8: silver() must return a DataFrame"),
    "void column": (
        "silver.py",
        BODY,
        '    from pyspark.sql import functions as F\n\n    return accepted.withColumn("x", F.lit(None))\n',
        "silver.py:8: x: has no type",
    ),
    "quoted column": (
        "silver.py",
        BODY,
        '    return accepted.withColumnRenamed("temp", "a.b")\n',
        "a.b: a column of silver",
    ),
    "missing column": (
        "silver.py",
        BODY,
        '    return accepted.drop("station", "observed_at")\n',
        "observed_at: silver() must",
    ),
    "unknown function": (
        "pipeline.yaml",
        "date_format(day",
        "date_formatt(day",
        "weather_days.partition: [UNRESOLVED_ROUTINE]",
    ),
    "unknown measure": ("pipeline.yaml", "{max: temp}", "{max: tempo}", "measures.warmest.max: [UNRESOLVED_COLUMN"),
    "sum of doubles": (
        "pipeline.yaml",
        "{sum: precip}",
        '{sum: "cast(precip as double)"}',
        "measures.rain.sum: adds up doubles; write cast(cast(precip as double) as decimal(p, s))",
    ),
    "average of floats": ("pipeline.yaml", "{avg: temp}", '{avg: "float(temp)"}', "measures.mean_temp.avg: adds up"),
    "quantile of a text": (
        "pipeline.yaml",
        "{max: temp}",
        "{approx_quantile: {value: station, at: 0.5}}",
        "measures.warmest.approx_quantile.value: must be a number, is string",
    ),
    "event time of another type": (
        "silver.py",
        BODY,
        '    return accepted.withColumn("observed_at", accepted.observed_at.cast("date"))\n',
        "observed_at: must be a timestamp, is date",
    ),
    "current time": (
        "silver.py",
        BODY,
        '    return accepted.selectExpr("*", "current_timestamp() as now")\n',
        "silver.py:8: silver() uses random numbers or the current time",
    ),
    "random numbers": (
        "silver.py",
        BODY,
        '    return accepted.selectExpr("*", "rand(7) as luck")\n',
        "silver.py:8: silver() uses random numbers or the current time",
    ),
    "rows in a cache": (
        "silver.py",
        BODY,
        "    return accepted.cache()\n",
        "silver.py:8: silver() must return a query over",
    ),
    "rows of a checkpoint": (
        "silver.py",
        BODY,
        "    return accepted.localCheckpoint()\n",
        "silver.py:8: silver() must return a query over its records",
    ),
    "counted rows": (
        "silver.py",
        BODY,
        "    from pyspark.sql import functions as F\n\n    return accepted.withColumn('n', F.lit(accepted.count()))\n",
        "silver.py:8: silver() executes a query; count(), first()",
    ),
    "first row": (
        "silver.py",
        BODY,
        "    return accepted.where(f'temp > {len(accepted.take(1))}')\n",
        "silver.py:8: silver() executes a query",
    ),
    "rows in Python": (
        "silver.py",
        BODY,
        "    return accepted.sparkSession.createDataFrame(accepted.collect(), accepted.schema)\n",
        "silver.py:8: silver() executes a query",
    ),
    "measure of the current time": (
        "pipeline.yaml",
        "{max: temp}",
        '{max: "datediff(current_date(), observed_at)"}',
        "measures.warmest.max: uses random numbers or the current time",
    ),
    "window over a silver column": (
        "silver.py",
        BODY,
        '    return accepted.withColumnRenamed("temp", "day")\n',
        "window.as: 'day'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_unusable_code_is_refused_before_a_table_is_created(spark: SparkSession, tmp_path: Path, case: str) -> None:
    file, old, new, words = CASES[case]
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    folder = Path(shutil.copytree(CLONE / "include" / "datasets" / "weather", settings.datasets / "weather"))
    text = (folder / file).read_text("utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1), "utf-8")
    dataset = load_dataset("weather", folder)
    with pytest.raises(DeclarationRefused) as refused:
        open_release(spark, settings, dataset)
    assert words in str(refused.value)
    assert not silver_path(settings, "weather", dataset.release).exists()


def test_refusal_of_a_release_names_its_file_and_the_folder_to_correct(spark: SparkSession, tmp_path: Path) -> None:
    file, old, new, words = CASES["window over a silver column"]
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    folder = Path(shutil.copytree(CLONE / "include" / "datasets" / "weather", settings.datasets / "weather"))
    text = (folder / file).read_text("utf-8")
    (folder / file).write_text(text.replace(old, new, 1), "utf-8")
    released = snapshot_dataset(settings, "weather")
    (folder / file).write_text(text, "utf-8")
    with pytest.raises(DeclarationRefused, match=words) as refused:
        open_release(spark, settings, released)
    assert [each.file for each in refused.value.problems] == [released.folder / "pipeline.yaml"]
    assert released.folder.is_relative_to(settings.state)
    assert f"release {released.release} of weather" in refused.value.what
    assert refused.value.remedy == f"correct {folder}; headrace contract check --dataset weather"


def test_gold_has_the_same_columns_at_the_first_start_and_later(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")
    folder = Path(shutil.copytree(CLONE / "include" / "datasets" / "weather", settings.datasets / "weather"))
    code, pipeline = folder / "silver.py", folder / "pipeline.yaml"
    code.write_text(
        code.read_text("utf-8").replace(BODY, '    return accepted.selectExpr("\'x\' as fixed", "*")\n'), "utf-8"
    )
    # A column of silver.py that is never null may be null in silver's files.
    text = pipeline.read_text("utf-8").replace("{max: temp}", '{max: "array(fixed)"}')
    pipeline.write_text(text, "utf-8")
    dataset = load_dataset("weather", folder)
    first, later = open_release(spark, settings, dataset), open_release(spark, settings, dataset)
    assert "array" in first.gold[0].table.spec.schema["warmest"].dataType.simpleString()
    assert [each.table.spec for each in first.gold] == [each.table.spec for each in later.gold]
