"""Golden cases of silver and rejected: the first record of an identity wins, nothing else is lost, nothing is late."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from histories import edited
from pyspark.sql import DataFrame, SparkSession
from small_events import escaped, flight_event
from small_release import Record, small_release
from stories import Story, Tell

from include.catalog.dataset import declared_dataset
from include.catalog.yaml_declarations import DeclarationRefused
from include.settings import Settings
from spark_jobs.storage.delta_table import RowsUnaccounted

A, B, C, D = (flight_event("scheduled", number) for number in (1, 2, 3, 4))
BAD_B = flight_event("scheduled", 2, dest="nowhere")
OTHER_B = flight_event("scheduled", 2, distance=77)
OLD = flight_event("scheduled", 5, "1999-12-31T23:59:59Z")
EDGE = flight_event("scheduled", 6, "2013-04-01T00:30:00Z")
# 2 days and 23 hours apart, on either side of the month: still within the horizon.
EDGE_EARLIER = flight_event("scheduled", 6, "2013-03-29T01:30:00Z")


def on(partition: int, record: Record) -> Record:
    return replace(record, partition=partition)


# (record, what becomes of it: accepted, invalid, or batch/partition/offset of the winner)
STORY: list[list[tuple[Record, str]]] = [
    [
        (A, "accepted"),  # 0/0/100
        (A, "0/0/100"),
        (BAD_B, "invalid"),
        (on(1, A), "0/0/100"),
        (on(1, B), "accepted"),  # 0/1/5001: an invalid record has no identity to take
        (on(1, D), "0/0/103"),
        (D, "accepted"),  # 0/0/103: in its batch the lower partition is first, whenever it came
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
def story(tell: Tell) -> Story:
    return tell("flights", [[record for record, _ in batch] for batch in STORY])


def fates(story: Story, batch: int) -> list[str]:
    """What became of the batch's records, in the order they were sent."""
    silver, rejected = story.release.silver(), story.release.rejected()
    told = {(row["_partition"], row["_offset"]): "accepted" for row in silver.to_dicts()}
    for row in rejected.to_dicts():
        (reason, *_) = row["reasons"]
        duplicate = reason["rule"] == "duplicate"
        told[row["_partition"], row["_offset"]] = reason["detail"] if duplicate else row["disposition"]
    ends = {0: 100, 1: 5_000}
    found = []
    for number, records in enumerate(STORY):
        for record, _ in records:
            place = (record.partition, ends[record.partition])
            ends[record.partition] += 1
            found += [told[place]] if number == batch else []
    return found


@pytest.mark.parametrize("batch", range(len(STORY)))
def test_what_becomes_of_each_record(story: Story, batch: int) -> None:
    assert fates(story, batch) == [fate for _, fate in STORY[batch]]


def test_the_first_payload_stays(story: Story) -> None:
    rows = story.release.silver().filter(flight=2).to_dicts()
    assert [(row["distance"], row["dest"], row["_batch_id"], row["_offset"]) for row in rows] == [
        (1400, "IAH", 0, 5001)
    ]


def test_a_late_record_is_in_its_own_month(story: Story) -> None:
    months = {row["flight"]: row["_month"] for row in story.release.silver().to_dicts()}
    assert months == {1: "2013-03", 2: "2013-03", 3: "2013-03", 4: "2013-03", 5: "1999-12", 6: "2013-04"}


def test_a_duplicate_names_its_identity(story: Story) -> None:
    row = story.release.rejected().filter(_partition=0, _offset=101).to_dicts()[0]
    assert row["disposition"] == "duplicate"
    assert row["reasons"] == [{"rule": "duplicate", "column": "event_id", "detail": "0/0/100"}]
    assert row["contract_version"] == story.release.dataset.contract.version
    assert row["_month"] == f"{row['first_seen']:%Y-%m}" == "2026-11"


def test_stage_orders_the_events_of_one_second(story: Story) -> None:
    assert set(story.release.silver()["stage"]) == {0}


def test_a_batch_without_records_moves_the_publication_alone(story: Story) -> None:
    for table in ("silver.flights", "rejected.flights", "gold.carrier_hours", "gold.worst_delays"):
        assert story.after(3, table).equals(story.after(2, table)), table


def test_a_batch_of_rejected_alone_changes_nothing_but_rejected(story: Story) -> None:
    assert story.after(4, "silver.flights").equals(story.after(3, "silver.flights"))
    assert story.after(4, "gold.flight_status").equals(story.after(3, "gold.flight_status"))
    assert story.after(4, "rejected.flights").height == story.after(3, "rejected.flights").height + 4


def test_refining_the_same_batches_again_commits_nothing(story: Story) -> None:
    release = story.release
    before, rows = release.versions(), release.silver().height
    release.restart()
    release.refine(len(STORY) - 1, len(STORY) - 1)
    release.refine(0, len(STORY) - 1)
    assert release.versions() == before
    assert release.silver().height == rows


def test_thousands_of_the_same_event(spark: SparkSession, settings: Settings) -> None:
    """One is accepted, in the first batch; the rest are duplicates of it."""
    release = small_release(spark, settings, "flights")
    release.take([on(number % 2, A) for number in range(200)])
    release.take([on(number % 2, A) for number in range(20_000)])
    assert release.silver().select("_batch_id", "_partition", "_offset").rows() == [(0, 0, 100)]
    details = [reasons[0]["detail"] for reasons in release.rejected()["reasons"].to_list()]
    assert Counter(details) == {"0/0/100": 20_199}


@pytest.mark.parametrize("made", ["lost", "doubled", "lost when it is no plain record"])
def test_code_that_does_not_make_one_row_of_each_record(made: str, spark: SparkSession, settings: Settings) -> None:
    """Nothing is committed, whichever way the record went."""
    release = small_release(spark, settings, "flights")
    release.ingest([A, B, escaped(C)])
    refinery = release.release.writer

    def careless(accepted: DataFrame, **reference: DataFrame) -> DataFrame:
        rows = refinery.transform(accepted, **reference)
        if made == "doubled":
            return rows.unionByName(rows.where("flight = 1"))
        return rows.where(f"flight != {1 if made == 'lost' else 3}")

    release.release = replace(release.release, writer=replace(refinery, transform=careless))
    with pytest.raises(RowsUnaccounted, match="one row of each"):
        release.refine(0, 0)
    assert release.refined() == -1
    assert release.begun() is None


def test_columns_that_differ_by_case_alone_are_refused(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    """Spark would tell them apart, DuckDB would not."""

    def shouted(folder: Path) -> None:
        path = folder / "silver.py"
        path.write_text(path.read_text("utf-8").replace('"seats")', '"seats", F.lit(1).alias("Flight"))'), "utf-8")

    folder = edited(tmp_path / "edited", shouted, declared_dataset(settings, "flights").folder)
    with pytest.raises(DeclarationRefused, match="silver.py:11: Flight: differs from flight by case alone"):
        small_release(spark, settings, "flights", folder)
