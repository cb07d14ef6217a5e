"""Every table that the platform writes is read by delta-spark, delta-rs, polars and DuckDB, with the same rows."""

from __future__ import annotations

import json
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from grown_history import GrownHistory
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession
from small_release import Record, small_release

from include.ground import commit_history
from include.ground.delta_log import log_versions
from include.ground.settings import Settings
from include.read.publication import PublishedTable, published_tables
from spark_jobs.tables import commit_log, delta_table
from spark_jobs.tables.commit_log import move_range

# Any of these shuts out a reader (MECHANICS, FACTS): the log then needs a protocol that not all four speak.
BANNED_PROPERTIES = {
    "delta.columnMapping.mode": "none",
    "delta.enableDeletionVectors": "false",
    "delta.enableTypeWidening": "false",
    "delta.checkpointPolicy": "classic",
    "delta.enableRowTracking": "false",
    "delta.enableInCommitTimestamps": "false",
    "delta.feature.timestampNtz": "absent",
}
READER_VERSION, WRITER_VERSION = 1, 2


def event(number: int, kind: str, **more: object) -> Record:
    """One flight's event; some of its text needs care in a path, a statistic or a CSV."""
    flight_id = f"2013-0{1 + number % 3}-28T23:{10 + number}Z/UA{number + 1}/EWR"
    fields = {
        "event_id": f"{flight_id}/{kind}/it's 100% \U0001f6eb",
        "kind": kind,
        "flight_id": flight_id,
        "occurred_at": f"{flight_id[:16]}:59.123456Z",
        "scheduled_departure": f"{flight_id[:16]}:00Z",
        "carrier": "UA",
        "flight": number + 1,
        "origin": "EWR",
        "dest": "IAH",
        "tailnum": None if number % 4 == 0 else f"N{number}",
        "distance": 1400,
    }
    return Record(json.dumps(fields | more).encode(), flight_id.encode(), number % 2, [("h", None), ("h", b"\xff")])


def observed(place: int, batch: int) -> Record:
    at = f"2013-0{1 + place % 2}-{10 + batch}T{place:02}:00:00Z"
    value = f'{{"event_id":"JFK/{at}","station":"JFK","observed_at":"{at}","temp":{place}.25,"precip":0.0{place}}}'
    return Record(value.encode(), b"JFK", place % 2)


@pytest.fixture(scope="module")
def settings_written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Both datasets, three batches each, so that gold has rewritten files, and a fourth that is all rejected."""
    settings = Settings(state=tmp_path_factory.mktemp("a warehouse"))
    flights = small_release(spark, settings, "flights")
    flights.take([event(number, "scheduled") for number in range(8)] + [Record(None)])
    flights.take([event(number, "departed", departure_delay=10 * number) for number in range(8)])
    flights.take([event(number, "arrived", arrival_delay=-1, air_time=90) for number in range(5)] * 2)
    flights.take([Record(b"nonsense"), event(1, "scheduled")])
    weather = small_release(spark, settings, "weather")
    for batch in range(3):
        weather.take([observed(place, batch) for place in range(6)] + [Record(b"nonsense")])
    return settings


TABLES = [f"{layer}.{dataset}" for layer in ("bronze", "silver", "rejected") for dataset in ("flights", "weather")]
TABLES += [f"gold.{name}" for name in ("carrier_hours", "route_days", "flight_status", "worst_delays", "weather_days")]


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, settings_written: Settings) -> PublishedTable:
    return published_tables(settings_written)[request.param]


OF_EACH_LAYER = ("bronze.flights", "silver.flights", "rejected.flights", "gold.carrier_hours")


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.extended] * (name not in OF_EACH_LAYER)) for name in TABLES]
)
def table_of_layer(request: pytest.FixtureRequest, settings_written: Settings) -> PublishedTable:
    """Return a table; in `make test` one of each layer: one code writes the tables of a layer."""
    return published_tables(settings_written)[request.param]


def test_every_published_table_is_covered(settings_written: Settings) -> None:
    assert sorted(published_tables(settings_written)) == sorted(TABLES)


def test_tables_use_the_oldest_protocol(table: PublishedTable) -> None:
    protocol = DeltaTable(str(table.path)).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (READER_VERSION, WRITER_VERSION)
    assert not protocol.reader_features
    assert not protocol.writer_features


def test_tables_have_no_property_that_excludes_a_reader(table: PublishedTable) -> None:
    configuration = DeltaTable(str(table.path)).metadata().configuration
    wrong = {
        key: configuration[key]
        for key, harmless in BANNED_PROPERTIES.items()
        if configuration.get(key, harmless) != harmless
    }
    assert wrong == {}


def test_log_has_no_actions_of_newer_protocols(table: PublishedTable) -> None:
    for action in actions(table.path):
        assert action.keys() <= {"commitInfo", "protocol", "metaData", "add", "remove", "txn"}
        assert "deletionVector" not in action.get("add", {}) | action.get("remove", {})
        assert not action.get("add", {}).get("baseRowId")


def actions(path: Path) -> list[dict[str, Any]]:
    logs = sorted((path / "_delta_log").glob("*.json"))
    return [json.loads(line) for log in logs for line in log.read_text("utf-8").splitlines()]


def test_every_reader_returns_the_same_rows(spark: SparkSession, table: PublishedTable) -> None:
    expected = by_delta_rs(table)
    assert expected.height > 0
    assert_frame_equal(by_polars(table), expected)
    assert_frame_equal(by_duckdb(table), expected)
    assert_frame_equal(by_delta_spark(spark, table), expected)


def test_checkpoint_changes_no_rows(spark: SparkSession, table_of_layer: PublishedTable, tmp_path: Path) -> None:
    """A checkpoint must keep the log's partition values, statistics and transactions."""
    before = by_delta_rs(table_of_layer)
    delta = DeltaTable(str(table_of_layer.path))
    delta.create_checkpoint()
    fresh = DeltaTable(str(table_of_layer.path))
    assert pa.table(fresh.get_add_actions(flatten=True))["num_records"].null_count == 0
    assert_frame_equal(by_delta_rs(table_of_layer), before)
    assert_frame_equal(by_delta_spark(spark, table_of_layer), before)


def test_readers_open_kept_versions_after_old_commits_moved(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(delta_table.PROPERTIES, "delta.checkpointInterval", "5")
    monkeypatch.setattr(commit_log, "SPARSE", 5)
    monkeypatch.setattr(commit_log, "KEPT_COMMITS", 5)
    monkeypatch.setattr(commit_history, "RANGE", 5)
    history = GrownHistory(Settings(state=tmp_path / "a state"))
    while history.batches < 25:
        history.add_batch(published=False)
    for table in (history.release.writer.bronze, history.release.gold[0].table):
        # Compaction replaced files of the older version, which are there still.
        versions = (7, table.version)
        kept = [PublishedTable(table.spec.name, table.spec.path, each, "flights", "a release", 0) for each in versions]
        before = [by_delta_rs(each) for each in kept]
        while move_range(table.spec.path, table.version, (7,), timedelta()):
            continue
        assert log_versions(table.spec.path)[:5] == [4, 5, 6, 7, 15]
        for each, rows in zip(kept, before, strict=True):
            for reader in (by_delta_rs, by_polars, by_duckdb, partial(by_delta_spark, spark)):
                assert_frame_equal(reader(each), rows)
        newest = spark.read.format("delta").load(str(table.spec.path))
        assert_frame_equal(in_order(newest.toArrow()), before[-1])


def test_filters_by_statistics_find_every_row(spark: SparkSession, table_of_layer: PublishedTable) -> None:
    """Ask for each bound of each column, so that a reader that prunes by statistics must find the row."""
    rows, frame, scan = by_delta_rs(table_of_layer), delta_frame(spark, table_of_layer), scanned(table_of_layer)
    for name in sorted(bounded(table_of_layer)):
        for value in {rows[name].min(), rows[name].max()} - {None}:
            wanted = rows.filter(pl.col(name) == value).height
            found = scan.filter(pl.col(name) == pl.lit(value, rows.schema[name])).collect()
            assert found.height == wanted, (name, value)
            assert frame.where(f"`{name}` = {literal(value)}").count() == wanted, (name, value)


def bounded(table: PublishedTable) -> set[str]:
    stats = [json.loads(action["add"]["stats"]) for action in actions(table.path) if "add" in action]
    return {name for stat in stats for name in stat["minValues"]}


def literal(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    kind = {"datetime": "timestamp", "date": "date"}.get(type(value).__name__, "")
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"{kind} '{text}'"


def by_delta_rs(table: PublishedTable) -> pl.DataFrame:
    return in_order(DeltaTable(str(table.path), version=table.version).to_pyarrow_table())


def by_polars(table: PublishedTable) -> pl.DataFrame:
    return in_order(scanned(table).collect().to_arrow())


def scanned(table: PublishedTable) -> pl.LazyFrame:
    """As `include.read` does: over the Arrow dataset. polars' own scan_delta fails where a path has a space."""
    return pl.scan_pyarrow_dataset(DeltaTable(str(table.path), version=table.version).to_pyarrow_dataset())


def by_duckdb(table: PublishedTable) -> pl.DataFrame:
    dataset = DeltaTable(str(table.path), version=table.version).to_pyarrow_dataset()
    connection = duckdb.connect()
    connection.sql("set timezone = 'UTC'")
    connection.register("published", dataset)
    return in_order(connection.sql("select * from published").to_arrow_table())


def by_delta_spark(spark: SparkSession, table: PublishedTable) -> pl.DataFrame:
    return in_order(delta_frame(spark, table).toArrow())


def delta_frame(spark: SparkSession, table: PublishedTable) -> Any:
    return spark.read.format("delta").option("versionAsOf", table.version).load(str(table.path))


def in_order(rows: pa.Table) -> pl.DataFrame:
    """One order of columns and rows; binary as text, since polars cannot sort by it in lists."""
    frame = pl.DataFrame(pl.from_arrow(rows))
    nested = [name for name, kind in frame.schema.items() if kind.is_nested()]
    sortable = frame.with_columns(pl.col(name).map_elements(repr, pl.String) for name in nested)
    return sortable.select(sorted(sortable.columns)).sort(sorted(sortable.columns))
