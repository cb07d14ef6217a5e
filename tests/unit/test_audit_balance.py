"""The whole audit of one dataset on small published tables; Kafka's side is a list of records."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from small_warehouse import NOON, SALES_CONTRACT, SmallWarehouse, bronze_metadata, bronze_row, rejected_row, silver_row

from include.audit.balance import DatasetAudit, PartitionBalance
from include.audit.gold import unchecked_error
from include.audit.kafka import RECORD, AuditUnavailable, Chunk, Topic
from include.audit.run import audit_dataset, audited_datasets
from include.declare.dataset import DatasetUnknown, ReleaseStart, snapshot_dataset
from include.ground.durable_files import name_by_checksum
from include.ground.kafka import BrokerUnreachable, TopicMissing
from include.ground.paths import snapshot_path
from include.ground.settings import Settings

PIPELINE = """
topic: sales
partitions: 2
event_time: sold_at
lateness: 1 days
identity: {columns: [event_id], horizon: 3 days}
gold:
  shop_days:
    kind: additive
    window: {column: sold_at, size: 1 day, as: day}
    keys: [shop]
    partition: date_format(day, 'yyyy-MM')
    measures:
      sales: {count_if: "kind = 'sold'"}
      turnover: {sum: amount}
"""
VALUES = {(0, 0): b'{"event_id":"a"}', (0, 1): b"bad", (0, 3): b'{"event_id":"a"}', (1, 0): b'{"event_id":"b"}'}


class SmallKafka:
    """A topic held in memory: records by (partition, offset), with holes where a transaction's markers are."""

    def __init__(self, values: Mapping[tuple[int, int], bytes], ends: Mapping[int, int]) -> None:
        self.values, self.ends = dict(values), dict(ends)
        self.starts = dict.fromkeys(ends, 0)
        self.topic_id = "T1"

    def open_topic(self, name: str) -> Topic:
        return Topic(name, self.topic_id, self.starts, self.ends, self.records)

    def records(self, partition: int, start: int, end: int, _ends: Iterable[int]) -> Iterator[Chunk]:
        """Two offsets at a time."""
        for first in range(start, end, 2):
            last = min(first + 2, end)
            there = [o for p, o in sorted(self.values) if p == partition and first <= o < last]
            rows = [self._row(offset, self.values[partition, offset]) for offset in there]
            yield Chunk(partition, first, last, pl.DataFrame(rows, schema=RECORD))

    def _row(self, offset: int, value: bytes) -> dict[str, Any]:
        stamp = int(NOON.timestamp() * 1000)
        row = {"offset": offset, "timestamp": stamp, "timestamp_type": 1, "key": b"k", "value": value}
        return row | {"headers": None}


@pytest.fixture
def kafka() -> SmallKafka:
    return SmallKafka(VALUES, {0: 5, 1: 1})


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return sales_settings(tmp_path)


def sales_settings(tmp_path: Path) -> Settings:
    """Return settings with the dataset's folder and an empty state."""
    folder = tmp_path / "the datasets" / "sales"
    folder.mkdir(parents=True)
    (folder / "contract.yaml").write_text(SALES_CONTRACT)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    return Settings(state=tmp_path / "a state", datasets=folder.parent)


@pytest.fixture
def warehouse(settings: Settings) -> SmallWarehouse:
    return write_sales(settings)


def write_sales(
    settings: Settings, values: Mapping[tuple[int, int], bytes] = VALUES, start: ReleaseStart | None = None
) -> SmallWarehouse:
    """Batch 0 holds offsets 0 and 1 of partition 0; batch 1 the rest. Offset 2 is a marker, 4 is not published."""
    made = SmallWarehouse(settings, release=snapshot_dataset(settings, "sales", start).release)
    first = [bronze_row(0, values[0, 0]), bronze_row(1, values[0, 1])]
    made.write("bronze", first, bronze_metadata(0, {0: (0, 2), 1: (0, 0)}))
    second = [bronze_row(3, values[0, 3], batch=1), bronze_row(0, values[1, 0], partition=1, batch=1)]
    made.write("bronze", second, bronze_metadata(1, {0: (2, 4), 1: (0, 1)}, {0: 1, 1: 1}))
    made.write("silver", [silver_row(0, "a"), silver_row(0, "b", partition=1, batch=1)])
    made.write("rejected", [rejected_row(1, "invalid", "malformed"), rejected_row(3, "duplicate", batch=1)])
    made.write("gold", [gold_row()])
    made.move(batch=1, offsets={0: 4, 1: 1})
    return made


def gold_row(**other: Any) -> dict[str, Any]:
    row = {"day": date(2026, 3, 1), "shop": "north", "sales": 2, "turnover": Decimal("3.00"), "_month": "2026-03"}
    return row | other


def found(audit: DatasetAudit) -> list[tuple[str, str, int | None, int | None, int | None]]:
    return [(f.kind.value, f.table, f.partition, f.start, f.end) for f in audit.findings]


def test_complete_dataset_is_balanced(settings: Settings, warehouse: SmallWarehouse, kafka: SmallKafka) -> None:
    audit = audit_dataset(settings, "sales", kafka.open_topic)
    assert found(audit) == []
    assert audit.balanced
    assert audit.partitions == (
        PartitionBalance(0, published_end=4, kafka=3, expired=0, bronze=3, silver=1, rejected=2, later=1),
        PartitionBalance(1, published_end=1, kafka=1, expired=0, bronze=1, silver=1, rejected=0, later=0),
    )
    assert [(check.table, check.rows, check.grains) for check in audit.gold] == [("gold.shop_days", 1, 1)]


def test_rows_after_the_publication_are_not_audited(
    settings: Settings, warehouse: SmallWarehouse, kafka: SmallKafka
) -> None:
    warehouse.write("bronze", [bronze_row(4, b"later", batch=2)], bronze_metadata(2, {0: (4, 5)}))
    warehouse.write("silver", [silver_row(4, "later", batch=2)])
    assert audit_dataset(settings, "sales", kafka.open_topic).balanced


def test_rows_without_a_partition_are_findings_of_each_layer(
    settings: Settings, warehouse: SmallWarehouse, kafka: SmallKafka
) -> None:
    warehouse.write("bronze", [bronze_row(9, b"lost", batch=1, partition=None)])
    warehouse.write("silver", [silver_row(8, "lost", batch=1, partition=None)])
    warehouse.write("rejected", [rejected_row(7, "duplicate", batch=1, partition=None)])
    warehouse.move(batch=1, offsets={0: 4, 1: 1})
    audit = audit_dataset(settings, "sales", kafka.open_topic)
    without = {(f.kind.value, f.table, f.rows) for f in audit.findings if "without a partition" in f.detail}
    assert without >= {("surplus", f"{layer}.sales", 1) for layer in ("bronze", "silver", "rejected")}
    assert [each.partition for each in audit.partitions] == [0, 1]
    assert not audit.balanced


def test_lost_record_is_found_in_each_layer(settings: Settings, warehouse: SmallWarehouse, kafka: SmallKafka) -> None:
    kafka.values[0, 2] = b"never ingested"
    kafka.values[1, 0] = VALUES[1, 0] + b" "
    warehouse.write("silver", [silver_row(9, "stray", batch=1)])
    warehouse.move(batch=1, offsets={0: 4, 1: 1})
    assert found(audit_dataset(settings, "sales", kafka.open_topic)) == [
        ("gap", "bronze.sales", 0, 2, 3),
        ("different", "bronze.sales", 1, 0, 1),
        ("surplus", "silver.sales", 0, 9, 10),
        ("different", "gold.shop_days", None, None, None),
        ("different", "gold.shop_days", None, None, None),
    ]


def test_records_expired_in_kafka_are_still_in_bronze(
    settings: Settings, warehouse: SmallWarehouse, kafka: SmallKafka
) -> None:
    kafka.starts = {0: 2, 1: 0}
    audit = audit_dataset(settings, "sales", kafka.open_topic)
    assert audit.balanced
    assert (audit.partitions[0].expired, audit.partitions[0].kafka) == (2, 1)


def test_truncated_topic_is_found(settings: Settings, warehouse: SmallWarehouse, kafka: SmallKafka) -> None:
    kafka.ends[0] = 3
    assert found(audit_dataset(settings, "sales", kafka.open_topic)) == [("surplus", "bronze.sales", 0, 3, 4)]


def test_recreated_topic_is_not_compared_with_bronze(
    settings: Settings, warehouse: SmallWarehouse, kafka: SmallKafka
) -> None:
    kafka.topic_id, kafka.values = "T2", {}
    assert found(audit_dataset(settings, "sales", kafka.open_topic)) == [
        ("different", "bronze.sales", None, None, None)
    ]


def test_unpublished_gold_table_is_missing(settings: Settings, kafka: SmallKafka) -> None:
    made = SmallWarehouse(settings, release=snapshot_dataset(settings, "sales").release)
    made.write("bronze", [], bronze_metadata(0, {0: (0, 0)}))
    made.write("silver", [])
    made.write("rejected", [])
    made.move(offsets={0: 0})
    assert found(audit_dataset(settings, "sales", kafka.open_topic)) == [
        ("missing", "gold.shop_days", None, None, None)
    ]


def test_dataset_without_a_publication_is_reported_without_an_error(settings: Settings, kafka: SmallKafka) -> None:
    audit = audit_dataset(settings, "sales", kafka.open_topic)
    assert (audit.balanced, audit.batch, [p.later for p in audit.partitions]) == (True, None, [5, 1])

    def no_topic(name: str) -> Topic:
        raise TopicMissing(name, "here")

    assert audit_dataset(settings, "sales", no_topic).partitions == ()


def only_file(warehouse: SmallWarehouse, table: str) -> Path:
    return next(warehouse.names[table].rglob("*.parquet"))


@pytest.mark.parametrize("table", ["bronze.sales", "silver.sales", "rejected.sales", "gold.shop_days"])
@pytest.mark.parametrize("harm", ["cut", "removed"])
def test_damaged_file_is_named_and_the_other_tables_are_audited(
    settings: Settings, warehouse: SmallWarehouse, kafka: SmallKafka, table: str, harm: str
) -> None:
    wrong_row = gold_row(sales=3) if table != "gold.shop_days" else None
    if wrong_row:
        warehouse.write("gold", [wrong_row])
        warehouse.move(batch=1, offsets={0: 4, 1: 1})
    file = only_file(warehouse, table)
    if harm == "cut":
        file.write_bytes(file.read_bytes()[:-20])
    else:
        file.unlink()
    kafka.ends[0] = 3
    audit = audit_dataset(settings, "sales", kafka.open_topic)
    damaged = [finding for finding in audit.findings if finding.kind.value == "damaged"]
    assert [finding.table for finding in damaged] == [table]
    assert str(file) in damaged[0].detail
    assert "restore the file from a backup" in damaged[0].detail
    others = {finding.table for finding in audit.findings} - {table}
    gold = {"gold.shop_days"} if table in ("bronze.sales", "rejected.sales") else set()
    assert others == gold | ({"bronze.sales"} - {table})
    unchecked = {each.table for each in audit.unchecked}
    assert ("gold.shop_days" in unchecked) is (table == "silver.sales")
    assert ("silver.sales" in unchecked) is (table in ("bronze.sales", "rejected.sales"))


def test_table_with_a_damaged_log_does_not_end_the_audit(
    settings: Settings, warehouse: SmallWarehouse, kafka: SmallKafka
) -> None:
    log = warehouse.names["rejected.sales"] / "_delta_log" / f"{0:020d}.json"
    log.write_bytes(b"")
    audit = audit_dataset(settings, "sales", kafka.open_topic)
    assert found(audit) == [("damaged", "rejected.sales", None, None, None)]
    assert str(log) in audit.findings[0].detail
    assert [check.table for check in audit.gold] == ["gold.shop_days"]


def test_flipped_byte_that_no_table_uses_is_found_by_the_checksum(
    settings: Settings, warehouse: SmallWarehouse, kafka: SmallKafka
) -> None:
    unnamed = only_file(warehouse, "silver.sales")
    named = name_by_checksum(unnamed)
    log = warehouse.names["silver.sales"] / "_delta_log" / f"{0:020d}.json"
    log.write_text(log.read_text().replace(unnamed.name, named.name))
    audit = audit_dataset(settings, "sales", kafka.open_topic)
    assert audit.balanced
    assert [(each.table, each.files, each.unverifiable) for each in audit.files if each.files] == [
        ("silver.sales", 1, 0)
    ]
    data = bytearray(named.read_bytes())
    data[data.index(b"_timestamp")] ^= 1
    named.write_bytes(data)
    (finding,) = audit_dataset(settings, "sales", kafka.open_topic).findings
    assert (finding.kind.value, finding.table) == ("damaged", "silver.sales")
    assert f"{named}: has checksum" in finding.detail


def test_missing_topic_or_snapshot_is_a_finding(
    settings: Settings, warehouse: SmallWarehouse, kafka: SmallKafka
) -> None:
    def no_topic(name: str) -> Topic:
        raise TopicMissing(name, "here")

    audit = audit_dataset(settings, "sales", no_topic)
    assert found(audit) == [("different", "bronze.sales", None, None, None)]
    assert "the topic does not exist" in audit.findings[0].detail
    assert len(audit.gold) == 1
    shutil.rmtree(snapshot_path(settings, "sales", warehouse.release))
    assert found(audit_dataset(settings, "sales", kafka.open_topic)) == [("missing", "release.sales", None, None, None)]


def test_declaration_that_duckdb_cannot_evaluate_leaves_the_other_tables_checked(
    settings: Settings, kafka: SmallKafka
) -> None:
    pipeline = settings.datasets / "sales" / "pipeline.yaml"
    pipeline.write_text(PIPELINE.replace("{sum: amount}", "{max: \"window(sold_at, '5 minutes')\"}"))
    write_sales(settings)
    audit = audit_dataset(settings, "sales", kafka.open_topic)
    (unchecked,) = audit.unchecked
    assert (audit.findings, audit.balanced) == ((), False)
    assert (unchecked.table, unchecked.expression) == ("gold.shop_days", "window(sold_at, '5 minutes')")
    error = unchecked_error("sales", unchecked)
    assert error.code == "expression-not-evaluable"
    assert error.remedy is not None
    assert "headrace release run --dataset sales" in error.remedy
    kafka.values[0, 2] = b"never ingested"
    assert found(audit_dataset(settings, "sales", kafka.open_topic)) == [("gap", "bronze.sales", 0, 2, 3)]


def test_audit_without_a_broker_has_no_result(settings: Settings, warehouse: SmallWarehouse) -> None:
    def no_broker(_: str) -> Topic:
        raise BrokerUnreachable("127.0.0.1:1")

    with pytest.raises(AuditUnavailable):
        audit_dataset(settings, "sales", no_broker)


def test_unknown_dataset_lists_the_known_ones(settings: Settings) -> None:
    assert audited_datasets(settings, None) == ["sales"]
    with pytest.raises(DatasetUnknown) as refused:
        audited_datasets(settings, "nothing")
    assert refused.value.known == ["sales"]


@pytest.mark.parametrize(("first", "wrong"), [(0, [0, 1]), (1, [1])])
def test_numbers_of_inherited_batches_are_those_of_an_earlier_release(
    settings: Settings, kafka: SmallKafka, first: int, wrong: list[int]
) -> None:
    (settings.datasets / "sales" / "silver.py").write_text("def silver(records, reference):\n    return records\n")
    kafka.values = {place: value.replace(b"}", b',"amount":2e0}') for place, value in VALUES.items()}
    write_sales(settings, kafka.values, ReleaseStart("earlier", first, 0, 0) if first else None)
    assert found(audit_dataset(settings, "sales", kafka.open_topic)) == [
        ("different", "silver.sales", partition, 0, 1) for partition in wrong
    ]
