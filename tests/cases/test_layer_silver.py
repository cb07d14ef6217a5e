"""Golden cases of silver and rejected: the first record of an identity wins, however late; others are rejected."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from batch_snapshots import BatchSnapshots, TakeBatches
from fewer_gold_tables import small_flights
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from slice_patcher import edited_dataset
from small_events import escaped, flight_event
from small_release import Record, small_release

from include.declare.dataset import declared_dataset
from include.declare.yaml_declarations import DeclarationRefused
from include.ground.settings import Settings
from spark_jobs.backends.local import runs, tables
from spark_jobs.backends.local.tables import rejected_rows_sql
from spark_jobs.tables.delta_table import RowsUnaccounted

A, B, C, D = (flight_event("scheduled", number) for number in (1, 2, 3, 4))
BAD_B = flight_event("scheduled", 2, dest="nowhere")
OTHER_B = flight_event("scheduled", 2, distance=77)
OLD = flight_event("scheduled", 5, "1999-12-31T23:59:59Z")
EDGE = flight_event("scheduled", 6, "2013-04-01T00:30:00Z")
# 2 days and 23 hours apart, on either side of the month: still within the horizon.
EDGE_EARLIER = flight_event("scheduled", 6, "2013-03-29T01:30:00Z")


def on(partition: int, record: Record) -> Record:
    return replace(record, partition=partition)


# (record, outcome: accepted, invalid, or batch/partition/offset of the winner)
BATCHES: list[list[tuple[Record, str]]] = [
    [
        (A, "accepted"),  # 0/0/100
        (A, "0/0/100"),
        (BAD_B, "invalid"),
        (on(1, A), "0/0/100"),
        (on(1, B), "accepted"),  # 0/1/5001: an invalid record takes no identity
        (on(1, D), "0/0/103"),
        (D, "accepted"),  # 0/0/103: within a batch the lower partition is first
    ],
    [
        (B, "0/1/5001"),
        (OTHER_B, "0/1/5001"),
        (BAD_B, "invalid"),
        (on(1, C), "accepted"),
        (OLD, "accepted"),  # decades late
        (EDGE, "accepted"),  # 1/0/108
    ],
    [(on(1, C), "1/1/5003"), (OLD, "1/0/107"), (OLD, "1/0/107"), (EDGE_EARLIER, "1/0/108"), (A, "0/0/100")],
    [],
    [(BAD_B, "invalid"), (Record(None), "invalid"), (Record(b"nonsense"), "invalid"), (A, "0/0/100")],
]


@pytest.fixture(scope="module")
def snapshots(take_batches: TakeBatches) -> BatchSnapshots:
    return take_batches("flights", [[record for record, _ in batch] for batch in BATCHES])


def outcomes(snapshots: BatchSnapshots, batch: int) -> list[str]:
    """Return the outcomes of the batch's records, in the order they were sent."""
    silver, rejected = snapshots.release.silver(), snapshots.release.rejected()
    outcome = {(row["_partition"], row["_offset"]): "accepted" for row in silver.to_dicts()}
    for row in rejected.to_dicts():
        (reason, *_) = row["reasons"]
        duplicate = reason["rule"] == "duplicate"
        outcome[row["_partition"], row["_offset"]] = reason["detail"] if duplicate else row["disposition"]
    ends = {0: 100, 1: 5_000}
    found = []
    for number, records in enumerate(BATCHES):
        for record, _ in records:
            coordinates = (record.partition, ends[record.partition])
            ends[record.partition] += 1
            found += [outcome[coordinates]] if number == batch else []
    return found


@pytest.mark.parametrize("batch", range(len(BATCHES)))
def test_each_record_has_its_outcome(snapshots: BatchSnapshots, batch: int) -> None:
    assert outcomes(snapshots, batch) == [outcome for _, outcome in BATCHES[batch]]


def test_first_payload_of_identity_stays_in_silver(snapshots: BatchSnapshots) -> None:
    rows = snapshots.release.silver().filter(flight=2).to_dicts()
    assert [(row["distance"], row["dest"], row["_batch_id"], row["_offset"]) for row in rows] == [
        (1400, "IAH", 0, 5001)
    ]


def test_late_record_is_in_month_of_its_event_time(snapshots: BatchSnapshots) -> None:
    months = {row["flight"]: row["_month"] for row in snapshots.release.silver().to_dicts()}
    assert months == {1: "2013-03", 2: "2013-03", 3: "2013-03", 4: "2013-03", 5: "1999-12", 6: "2013-04"}


def test_duplicate_names_its_winner(snapshots: BatchSnapshots) -> None:
    row = snapshots.release.rejected().filter(_partition=0, _offset=101).to_dicts()[0]
    assert row["disposition"] == "duplicate"
    assert row["reasons"] == [{"rule": "duplicate", "column": "event_id", "detail": "0/0/100"}]
    assert row["contract_version"] == snapshots.release.dataset.contract.version
    assert row["_month"] == f"{row['first_seen']:%Y-%m}" == "2026-11"


def test_empty_batch_moves_the_publication_and_changes_no_rows(snapshots: BatchSnapshots) -> None:
    before, after = snapshots.publications[2:4]
    assert (before.batch, after.batch, after.offsets) == (2, 3, before.offsets)
    for table in ("silver.flights", "rejected.flights", "gold.carrier_hours", "gold.worst_delays"):
        assert snapshots.after(3, table).equals(snapshots.after(2, table)), table


def test_batch_of_rejected_records_changes_only_rejected(snapshots: BatchSnapshots) -> None:
    assert snapshots.after(4, "silver.flights").equals(snapshots.after(3, "silver.flights"))
    assert snapshots.after(4, "gold.flight_status").equals(snapshots.after(3, "gold.flight_status"))
    assert snapshots.after(4, "rejected.flights").height == snapshots.after(3, "rejected.flights").height + 4


def test_redelivered_batches_commit_nothing(snapshots: BatchSnapshots) -> None:
    release = snapshots.release
    before, rows = release.versions(), release.silver().height
    release.restart()
    release.refine(len(BATCHES) - 1, len(BATCHES) - 1)
    release.refine(0, len(BATCHES) - 1)
    assert release.versions() == before
    assert release.silver().height == rows


@pytest.mark.extended
def test_thousands_of_copies_are_accepted_once(spark: SparkSession, settings: Settings) -> None:
    """The first record of the first batch is accepted; all others are its duplicates."""
    release = small_flights(spark, settings)
    release.take([on(number % 2, A) for number in range(200)])
    release.take([on(number % 2, A) for number in range(20_000)])
    assert release.silver().select("_batch_id", "_partition", "_offset").rows() == [(0, 0, 100)]
    details = [reasons[0]["detail"] for reasons in release.rejected()["reasons"].to_list()]
    assert Counter(details) == {"0/0/100": 20_199}


@pytest.mark.parametrize("rows", ["lost", "doubled", "without its place", "lost when walked", "lost and doubled"])
def test_silver_code_that_loses_or_doubles_rows_is_refused(rows: str, spark: SparkSession, settings: Settings) -> None:
    """Nothing is committed, by whichever pass the record was read."""
    release = small_flights(spark, settings)
    release.ingest([A, B, escaped(C)] if rows != "lost and doubled" else [A, escaped(B), escaped(C)])
    writer = release.release.writer

    def careless(accepted: DataFrame, **reference: DataFrame) -> DataFrame:
        transformed = writer.transform(accepted, **reference)
        if rows == "doubled":
            return transformed.unionByName(transformed.where("flight = 1"))
        if rows == "without its place":
            return transformed.withColumn("_offset", F.when(F.col("flight") != 1, F.col("_offset")))
        if rows == "lost and doubled":
            return transformed.where("flight != 3").unionByName(transformed.where("flight = 2"))
        return transformed.where(f"flight != {1 if rows == 'lost' else 3}")

    release.release = replace(release.release, writer=replace(writer, transform=careless))
    with pytest.raises(RowsUnaccounted, match="exactly one row per record"):
        release.refine(0, 0)
    assert release.refined() == -1
    assert release.begun() is None


@pytest.mark.parametrize("table", ["silver", "rejected"])
def test_run_that_would_lose_a_row_of_a_table_is_refused(
    spark: SparkSession, settings: Settings, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    release = small_flights(spark, settings)
    release.ingest([A, A, B])
    if table == "silver":
        monkeypatch.setattr(runs, "write_originals", lambda *_: [])
    else:
        monkeypatch.setattr(tables, "rejected_rows_sql", lambda dataset: f"{rejected_rows_sql(dataset)} limit 0")
    with pytest.raises(RowsUnaccounted, match="3 records came in, . are accepted and . rejected"):
        release.refine(0, 0)
    assert (release.refined(), release.begun()) == (-1, None)


def test_columns_that_differ_only_by_case_are_refused(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    """Spark would distinguish them, DuckDB would not."""

    def add_uppercase_column(folder: Path) -> None:
        path = folder / "silver.py"
        path.write_text(path.read_text("utf-8").replace('"seats")', '"seats", F.lit(1).alias("Flight"))'), "utf-8")

    folder = edited_dataset(tmp_path / "edited", add_uppercase_column, declared_dataset(settings, "flights").folder)
    with pytest.raises(DeclarationRefused, match="silver.py:11: Flight: differs from flight by case alone"):
        small_release(spark, settings, "flights", folder)
