"""Audits after a balanced one: what came since is compared, and everything as soon as an older row may have changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from small_warehouse import NOON, SmallWarehouse, bronze_metadata, bronze_row, rejected_row, silver_row
from test_audit_balance import VALUES, SmallKafka, found, gold_row, sales_settings, write_sales

from include.audit import kafka_comparison
from include.audit.balance import DatasetAudit
from include.audit.bronze import CommittedRange
from include.audit.kafka import Chunk
from include.audit.run import last_outcome, record_outcomes, requested_audits
from include.audit.verified_history import files_digest, history_file
from include.ground.settings import Settings

LATER = datetime(2026, 3, 2, tzinfo=UTC)
NEW = {(0, 4): b'{"event_id":"c"}', (1, 1): b'{"event_id":"a"}'}


class WatchedKafka(SmallKafka):
    """Remembers which ranges were read."""

    read: list[tuple[int, int, int]]

    def records(self, partition: int, start: int, end: int, ends: Iterable[int]) -> Iterator[Chunk]:
        self.read.append((partition, start, end))
        return super().records(partition, start, end, ends)


@pytest.fixture(autouse=True)
def few_offsets_are_compared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_comparison, "COMPARED_AGAIN", 3)


@pytest.fixture
def kafka() -> WatchedKafka:
    made = WatchedKafka(VALUES | NEW, {0: 5, 1: 2})
    made.read = []
    return made


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return sales_settings(tmp_path)


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> SmallWarehouse:
    """Return tables whose two batches were audited; tests change copies of them."""
    made = write_sales(sales_settings(tmp_path_factory.mktemp("audited")))
    assert audit(made.settings, SmallKafka(VALUES | NEW, {0: 5, 1: 2})).balanced
    return made


@pytest.fixture
def warehouse(settings: Settings, audited: SmallWarehouse) -> SmallWarehouse:
    """Return the test's own copy of these tables, whose files have the same times."""
    shutil.copytree(audited.settings.state, settings.state, dirs_exist_ok=True)
    names = {name: settings.state / path.relative_to(audited.settings.state) for name, path in audited.names.items()}
    return replace(audited, settings=settings, names=names)


def audit(settings: Settings, kafka: SmallKafka, *, full: bool = False) -> DatasetAudit:
    audits = requested_audits(settings, ["sales"], kafka.open_topic, lambda *_: ({}, ""), full=full)
    record_outcomes(settings, audits, LATER)
    return audits[0]


def add_batch(warehouse: SmallWarehouse, identity: str = "c") -> None:
    """Publish batch 2: a new event, and a duplicate of one that is verified."""
    rows = [bronze_row(4, NEW[0, 4], batch=2), bronze_row(1, NEW[1, 1], partition=1, batch=2)]
    warehouse.write("bronze", rows, bronze_metadata(2, {0: (4, 5), 1: (1, 2)}))
    warehouse.write("silver", [silver_row(4, identity, batch=2, shop="south")])
    warehouse.write("rejected", [rejected_row(1, "duplicate", partition=1, batch=2)])
    warehouse.write("gold", [gold_row(shop="south", sales=1, turnover=Decimal("1.50"))])
    warehouse.move(batch=2, offsets={0: 5, 1: 2})


def rewrite(warehouse: SmallWarehouse, table: str, change: pl.Expr | None = None) -> None:
    """Replace all files of a table by one, as compaction does, with a changed column if requested."""
    path = warehouse.names[table]
    rows = pl.DataFrame(pl.from_arrow(DeltaTable(path).to_pyarrow_table()))
    rows = rows if change is None else rows.with_columns(change)
    if change is None:
        assert DeltaTable(path).optimize.compact()["numFilesRemoved"] >= 2
    else:
        schema = DeltaTable(path).to_pyarrow_table().schema
        write_deltalake(path, pa.table(rows.to_arrow().cast(schema)), mode="overwrite")
    warehouse.move(batch=1, offsets={0: 4, 1: 1})


def test_only_records_after_the_balanced_audit_are_read(
    settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka
) -> None:
    add_batch(warehouse)
    second = audit(settings, kafka)
    assert second.balanced, second
    assert sorted(kafka.read) == [(0, 1, 5), (1, 0, 2)], "the last three offsets before the verified end are read again"
    assert [(p.kafka, p.bronze, p.silver, p.rejected, p.published_end) for p in second.partitions] == [
        (4, 4, 2, 2, 5),
        (2, 2, 1, 1, 2),
    ]
    assert [(each.table, each.earlier) for each in second.files] == [
        ("bronze.sales", 2),
        ("silver.sales", 1),
        ("rejected.sales", 1),
        ("gold.shop_days", 1),
    ]
    outcome = last_outcome(settings, "sales")
    assert outcome is not None
    assert outcome.records == {"kafka": 6, "bronze": 6, "silver": 3, "rejected": 3}
    kafka.read = []
    third = audit(settings, kafka)
    assert (third.balanced, sorted(kafka.read)) == (True, [(0, 2, 5), (1, 0, 2)])
    assert sum(each.files for each in third.files) == 0


def test_full_audit_reads_everything_and_says_the_same(
    settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka
) -> None:
    add_batch(warehouse)
    everything = audit(settings, kafka, full=True)
    assert (everything.balanced, sorted(kafka.read)) == (True, [(0, 0, 5), (1, 0, 2)])
    assert everything.scope.why_all == "requested"
    outcome = last_outcome(settings, "sales")
    assert outcome is not None
    assert outcome.records == {"kafka": 6, "bronze": 6, "silver": 3, "rejected": 3}


def test_loss_in_a_new_batch_is_found(settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka) -> None:
    warehouse.write("bronze", [bronze_row(4, b"other", batch=2)], bronze_metadata(2, {0: (4, 5), 1: (1, 2)}))
    warehouse.move(batch=2, offsets={0: 5, 1: 2})
    assert found(audit(settings, kafka)) == [
        ("different", "bronze.sales", 0, 4, 5),
        ("gap", "bronze.sales", 1, 1, 2),
        ("gap", "bronze.sales", 1, 1, 2),
        ("missing", "silver.sales", 0, 4, 5),
    ]
    assert history_file(settings, "sales").read() is None


def test_offsets_between_the_verified_ones_and_the_new_batch_are_missed(
    settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka
) -> None:
    warehouse.write("bronze", [], bronze_metadata(2, {0: (4, 4), 1: (2, 2)}))
    warehouse.move(batch=2, offsets={0: 4, 1: 2})
    assert ("gap", "bronze.sales", 1, 1, 2) in found(audit(settings, kafka))


def test_new_row_with_the_identity_of_a_verified_one_is_found(
    settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka
) -> None:
    add_batch(warehouse, identity="a")
    assert found(audit(settings, kafka)) == [("overlap", "silver.sales", 0, 4, 5)]


def test_records_that_kafka_replaced_before_the_verified_end_are_found(
    settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka
) -> None:
    kafka.values[0, 3] = b"sent again after a loss"
    assert found(audit(settings, kafka)) == [("different", "bronze.sales", 0, 3, 4)]


def test_new_row_without_a_batch_is_found(settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka) -> None:
    warehouse.write("silver", [silver_row(0, "a", batch=None, shop="south")])
    warehouse.write("gold", [gold_row(shop="south", sales=1, turnover=Decimal("1.50"))])
    warehouse.move(batch=1, offsets={0: 4, 1: 1})
    assert ("surplus", "silver.sales", 0, 0, 1) in found(audit(settings, kafka))


def test_accepted_loss_and_records_deleted_in_kafka_are_still_shown(settings: Settings, kafka: WatchedKafka) -> None:
    made = write_sales(settings)
    made.write("bronze", [], bronze_metadata(2, {0: (5, 5), 1: (1, 1)}) | {"lost": {"0": [4, 5]}})
    made.move(batch=2, offsets={0: 5, 1: 1})
    kafka.starts = {0: 2, 1: 0}
    del kafka.values[0, 4]
    shown = [audit(settings, kafka) for _ in range(2)]
    assert [each.balanced for each in shown] == [True, True], shown
    assert [each.lost for each in shown] == [(CommittedRange(2, 0, 4, 5, 0),)] * 2
    assert [(p.kafka, p.expired, p.bronze) for each in shown for p in each.partitions if p.partition == 0] == [
        (1, 2, 3),
        (1, 2, 3),
    ]


def test_audit_that_ends_after_another_found_damage_verifies_nothing(
    settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka
) -> None:
    begun = requested_audits(settings, ["sales"], kafka.open_topic, lambda *_: ({}, ""))
    history_file(settings, "sales").remove()
    record_outcomes(settings, begun, LATER)
    assert begun[0].balanced
    assert history_file(settings, "sales").read() is None


def test_compacted_files_keep_their_rows_verified(
    settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka
) -> None:
    rewrite(warehouse, "bronze.sales")
    add_batch(warehouse)
    after = audit(settings, kafka)
    assert (after.balanced, sorted(kafka.read)) == (True, [(0, 1, 5), (1, 0, 2)])
    assert after.scope.verified is not None
    assert after.files[0].files == 0, "files of this table carry no checksum"


def test_replaced_files_that_are_gone_make_the_audit_full(
    settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka
) -> None:
    old = list(warehouse.names["bronze.sales"].rglob("*.parquet"))
    rewrite(warehouse, "bronze.sales")
    old[0].unlink()
    after = audit(settings, kafka)
    assert (after.balanced, after.scope.why_all) == (True, "rows of batches up to 1 may have changed in bronze.sales")


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("bronze.sales", pl.lit(b"{}").alias("value")),
        ("silver.sales", pl.lit("south").alias("shop")),
        ("rejected.sales", pl.lit("2.0.0").alias("contract_version")),
    ],
)
def test_changed_row_of_a_verified_batch_makes_the_audit_full(
    settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka, table: str, change: pl.Expr
) -> None:
    rewrite(warehouse, table, change)
    after = audit(settings, kafka)
    assert after.scope.verified is None
    assert after.scope.why_all == f"rows of batches up to 1 may have changed in {table}"
    assert sorted(kafka.read) == [(0, 0, 4), (1, 0, 1)]
    assert after.balanced is (table == "rejected.sales")


def test_file_that_was_touched_makes_the_audit_full(
    settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka
) -> None:
    file = next(warehouse.names["silver.sales"].rglob("*.parquet"))
    os.utime(file, ns=(1, 1))
    touched = audit(settings, kafka)
    assert touched.balanced
    assert touched.scope.why_all == "rows of batches up to 1 may have changed in silver.sales"
    assert audit(settings, kafka).scope.why_all == ""
    file.write_bytes(file.read_bytes()[:-20])
    damaged = audit(settings, kafka)
    assert damaged.scope.why_all == "rows of batches up to 1 may have changed in silver.sales"
    assert [finding.kind.value for finding in damaged.findings] == ["damaged"]
    assert history_file(settings, "sales").read() is None


def test_other_release_topic_or_earlier_batch_makes_the_audit_full(
    settings: Settings, warehouse: SmallWarehouse, kafka: WatchedKafka
) -> None:
    file = history_file(settings, "sales")
    verified = file.read()
    assert verified is not None
    assert verified.at == LATER != NOON
    for other, why in (
        (replace(verified, release="r0"), "release r0 was audited before"),
        (replace(verified, duckdb="0.1"), "audited before with DuckDB 0.1"),
        (replace(verified, topic_id="T0"), "another topic was audited before"),
        (replace(verified, batch=2), "batch 2 was audited before"),
        (replace(verified, offsets={"0": 4, "1": 2}), "batch 1 was audited before"),
    ):
        file.write(other)
        again = audit(settings, kafka)
        assert (again.scope.why_all, again.balanced) == (why, True)
    assert audit(settings, kafka).scope.why_all == ""


def test_digest_does_not_depend_on_which_file_has_a_row_nor_on_the_names_of_columns(tmp_path: Path) -> None:
    rows = pl.DataFrame({"FileName": ["a", "b", "c"], 'with "quotes"': [1, 2, None], "_batch_id": [0, 1, 2]})
    rows.write_parquet(tmp_path / "all.parquet")
    rows[:1].write_parquet(tmp_path / "first.parquet")
    rows[1:].reverse().write_parquet(tmp_path / "rest.parquet")
    whole = files_digest(tmp_path, ["all.parquet"], 1)
    assert whole[0] == 2, "rows of batches up to 1"
    assert files_digest(tmp_path, ["first.parquet", "rest.parquet"], 1) == whole
    assert files_digest(tmp_path, ["first.parquet", "rest.parquet"], 2) != files_digest(tmp_path, ["rest.parquet"], 2)
    assert files_digest(tmp_path, [], 1) == files_digest(tmp_path, ["rest.parquet"], 0) == (0, 0)


def test_digest_leaves_out_the_partition_which_some_files_have_and_all_paths(tmp_path: Path) -> None:
    rows = pl.DataFrame({"n": [1, 2], "_batch_id": [0, 1]})
    (tmp_path / "_month=2026-11").mkdir()
    rows.with_columns(_month=pl.lit("2026-11")).write_parquet(tmp_path / "_month=2026-11" / "with.parquet")
    rows.write_parquet(tmp_path / "_month=2026-11" / "without.parquet")
    found = [files_digest(tmp_path, [f"_month=2026-11/{name}.parquet"], 1) for name in ("with", "without")]
    assert found[0] == found[1]
