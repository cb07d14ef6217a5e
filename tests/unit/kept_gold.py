"""The dataset `sales` with gold of each kind, kept as a driver does: batch by batch, and only changed files replaced.

The right rows come from the audit's own recomputation, which `test_audit_gold.py` tests; no Spark, no broker.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from small_warehouse import SILVER, SmallWarehouse, bronze_metadata, bronze_row, rejected_row, silver_row
from test_audit_balance import SmallKafka, sales_settings

from include.audit.balance import DatasetAudit
from include.audit.gold import DIALECT, recompute_sql
from include.audit.run import record_outcomes, requested_audits
from include.declare.dataset import released_dataset, snapshot_dataset
from include.declare.gold import EVERY_RUN, Gold
from include.ground.paths import gold_path
from include.ground.settings import Settings
from include.read.publication import publish
from include.read.published_tables import REFRESH_KEY, RefreshState

PIPELINE = """
topic: sales
partitions: 1
event_time: sold_at
lateness: 1 days
identity: {columns: [event_id], horizon: 3 days}
gold:
  shop_days:
    kind: additive
    window: {column: sold_at, size: 1 day, as: day}
    keys: [shop]
    measures: {sales: {count_if: "kind = 'sold'"}, mean_amount: {avg: amount}}
  shop_hours:
    kind: additive
    window: {column: sold_at, size: 2 hours, slide: 1 hours, as: since}
    measures: {sales: {count: "*"}}
  shop_status:
    kind: latest
    where: kind <> 'void'
    keys: [shop]
    order_by: [sold_at]
    columns: {last: event_id, amount: amount}
  shop_totals:
    kind: additive
    keys: [shop]
    measures:
      sales: {count_if: "kind = 'sold'"}
      turnover: {sum: amount}
      most: {max: amount}
      events: {count: "*"}
      share: {ratio: {of: sales, to: events}}
  shop_reach:
    kind: additive
    keys: [shop]
    measures: {kinds: {count_distinct: kind}}
  best_sales:
    kind: query
    query: best_sales.sql
    window: {column: sold_at, size: 1 day, as: day}
    keys: [shop]
    touched_by: kind = 'sold'
  shop_sessions:
    kind: additive
    session: {column: sold_at, gap: 1 hours, start: since, end: until}
    keys: [shop]
    measures: {events: {count: "*"}}
  behind_days:
    kind: additive
    window: {column: sold_at, size: 1 day, as: day}
    measures: {events: {count: "*"}}
    refresh: every 1 hours
  closed_days:
    kind: additive
    window: {column: sold_at, size: 1 day, as: day}
    measures: {events: {count: "*"}}
    refresh: on_close
"""
BEST_SALES = """
select day, shop, event_id, amount from silver
qualify row_number() over (partition by day, shop order by amount desc nulls last, event_id) <= 1
"""
PROVENANCE = "0::bigint as _first_batch, 0::bigint as _last_batch, 1::bigint as _revision"
# Where a row of a table lies: the month of its window or session, else the first letter of its key.
PARTS = {"shop": "shop[1:1]", "day": "strftime(day, '%Y-%m')", "since": "strftime(since, '%Y-%m')"}


@dataclass
class KeptSales:
    """Silver and gold of `sales` with batches, and the topic that they came from; `without` some gold tables."""

    folder: Path
    without: tuple[str, ...] = ()
    settings: Settings = field(init=False)
    kafka: SmallKafka = field(init=False)
    tables: SmallWarehouse = field(init=False)
    batch: int = -1
    commits: int = 0
    behind: int = -1
    watermark: datetime | None = None
    gold: dict[str, Gold] = field(init=False)

    def __post_init__(self) -> None:
        self.settings = sales_settings(self.folder)
        declared = self.settings.datasets / "sales"
        pipeline = yaml.safe_load(PIPELINE)
        pipeline["gold"] = {name: gold for name, gold in pipeline["gold"].items() if name not in self.without}
        (declared / "pipeline.yaml").write_text(yaml.safe_dump(pipeline))
        contract = declared / "contract.yaml"
        contract.write_text(contract.read_text().replace("{name: shop,", "{name: shop, required: true,"))
        (declared / "best_sales.sql").write_text(BEST_SALES)
        release = snapshot_dataset(self.settings, "sales").release
        self.tables, self.kafka = SmallWarehouse(self.settings, release=release), SmallKafka({}, {0: 0})
        self.tables.write("rejected", [])
        self.gold = {gold.name: gold for gold in released_dataset(self.settings, "sales", release).pipeline.gold}

    def copied(self, folder: Path) -> KeptSales:
        """Return the same with a copy of its files, which have the same times."""
        shutil.copytree(self.folder, folder)
        other = deepcopy(self)
        other.folder = folder
        moved = {name: folder / getattr(self.settings, name).relative_to(self.folder) for name in ("state", "datasets")}
        other.settings = self.settings.model_copy(update=moved)
        other.tables.settings = other.settings
        other.tables.names = {name: folder / path.relative_to(self.folder) for name, path in self.tables.names.items()}
        return other

    def add(self, *events: dict[str, Any], gold: bool = True, duplicate_of: tuple[int, int] | None = None) -> None:
        """Publish a batch of events: changed columns of `silver_row`, without `gold` only in the layers before.

        Another record is a duplicate of the one with a batch and an offset.
        """
        first, self.batch = self.kafka.ends[0], self.batch + 1
        last = self.kafka.ends[0] = first + len(events)
        values = {offset: json.dumps({"event_id": f"e{offset}"}).encode() for offset in range(first, last)}
        if duplicate_of is not None:
            self.kafka.ends[0] += 1
            values[last] = json.dumps({"event_id": f"e{duplicate_of[1]}"}).encode()
            reasons = [{"rule": "identity", "column": None, "detail": "{}/0/{}".format(*duplicate_of)}]
            self.tables.write("rejected", [rejected_row(last, "duplicate", batch=self.batch, reasons=reasons)])
        self.kafka.values |= {(0, offset): value for offset, value in values.items()}
        rows = [
            bronze_row(offset, value, batch=self.batch, _date=f"batch {self.batch}") for offset, value in values.items()
        ]
        self.tables.write("bronze", rows, bronze_metadata(self.batch, {0: (first, self.kafka.ends[0])}))
        numbered = zip(range(first, last), events, strict=True)
        silver = [silver_row(n, f"e{n}", batch=self.batch, **each) for n, each in numbered]
        self.tables.write("silver", [{**row, "_month": f"{row['sold_at']:%Y-%m}"} for row in silver])
        if gold:
            self.keep_gold()
        self.publish()

    def publish(self) -> None:
        """Publish the versions that the tables have now; one with an interval has its own batch."""
        moved = self.tables.move(self.batch, {0: self.kafka.ends[0]})
        behind = {
            f"gold.{name}": replace(moved.tables[f"gold.{name}"], batch=self.behind)
            for name, gold in self.gold.items()
            if gold.refresh_interval is not None
        }
        publish(self.settings, replace(moved, tables={**moved.tables, **behind}))

    def keep_gold(self, names: Sequence[str] = ()) -> None:
        """Bring gold tables up to date as a run does."""
        wanted = [*(names or self.gold)]
        for name, rows in zip(wanted, self.right_rows(*wanted), strict=True):
            self.replace(name, rows)

    def right_rows(self, *names: str) -> list[pl.DataFrame]:
        """Return the right rows of each of these gold tables."""
        silver = pl.DataFrame(pl.from_arrow(DeltaTable(self.tables.names["silver.sales"]).to_pyarrow_table()))
        with duckdb.connect() as database:
            database.execute("set TimeZone = 'UTC';" + DIALECT)
            return [self._right_rows(database, silver, self.gold[name]) for name in names]

    def _right_rows(self, database: duckdb.DuckDBPyConnection, silver: pl.DataFrame, gold: Gold) -> pl.DataFrame:
        if gold.refresh_interval is not None:
            silver = silver.filter(pl.col("_batch_id") <= self.behind)
        database.register("silver", silver.to_arrow().cast(SILVER))
        timed, part = gold.timed_by, _part(gold)
        closed = timed.closing(self.watermark).sql if timed and gold.closes else "true"
        sql = f"select *, {PROVENANCE}, {part} as _part from ({recompute_sql(gold, SILVER.names)}) where {closed}"
        return database.sql(sql).pl()

    def replace(self, name: str, rows: pl.DataFrame) -> None:
        """Replace the files of the parts whose rows differ, in one commit for each; a new version in any case."""
        path = self.tables.names[f"gold.{name}"] = gold_path(self.settings, "sales", self.tables.release, name)
        arrow = rows.to_arrow()
        arrow = arrow.cast(pa.schema([(f.name, _plain(f.type)) for f in arrow.schema]))
        if not DeltaTable.is_deltatable(str(path)):
            write_deltalake(path, arrow.slice(0, 0), partition_by=["_part"], commit_properties=self._commit(name))
        old = self.rows(name)
        for part in sorted({*old["_part"], *rows["_part"]}):
            new = rows.filter(pl.col("_part") == part)
            if not _equal(old.filter(pl.col("_part") == part), new):
                files = arrow.filter(pc.field("_part") == part)
                overwritten = {"mode": "overwrite", "predicate": f"_part = '{part}'"}
                write_deltalake(path, files, commit_properties=self._commit(name), **overwritten)  # type: ignore[call-overload]
        if self.gold[name].refresh != EVERY_RUN:
            write_deltalake(path, arrow.slice(0, 0), mode="append", commit_properties=self._commit(name))

    def _commit(self, name: str) -> CommitProperties:
        gold = self.gold[name]
        batch = self.behind if gold.refresh_interval is not None else self.batch
        state = RefreshState(batch, watermark=self.watermark if gold.closes else None)
        self.commits += 1
        metadata = {} if gold.refresh == EVERY_RUN else {"app_id": name, REFRESH_KEY: state.as_json()}
        transactions = [Transaction(name, self.commits)]
        return CommitProperties({"userMetadata": json.dumps(metadata)}, app_transactions=transactions)

    def rows(self, name: str) -> pl.DataFrame:
        table = DeltaTable(self.tables.names[f"gold.{name}"]).to_pyarrow_table()
        return pl.DataFrame(pl.from_arrow(table))

    def audit(self, *, full: bool = False) -> DatasetAudit:
        audits = requested_audits(self.settings, ["sales"], self.kafka.open_topic, lambda *_: ({}, ""), full=full)
        record_outcomes(self.settings, audits, datetime(2026, 6, 1, tzinfo=UTC))
        return audits[0]

    def make_unreadable(self, table: str, *parts: str) -> int:
        """Overwrite files, of these partitions only, with zeros, with size and time as before; return how many."""
        found = [file for file in self.tables.names[table].rglob("*.parquet") if not parts or file.parent.name in parts]
        for file in found:
            stat = file.stat()
            file.write_bytes(bytes(stat.st_size))
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        return len(found)


def _part(gold: Gold) -> str:
    timed = gold.timed_by
    name = "shop" if timed is None else getattr(timed, "start", None) or timed.name  # type: ignore[union-attr]
    return PARTS[name]


def _plain(kind: pa.DataType) -> pa.DataType:
    return {pa.large_string(): pa.string()}.get(kind, kind)


def _equal(one: pl.DataFrame, other: pl.DataFrame) -> bool:
    columns = sorted(one.columns)
    return one.height == other.height and one.select(columns).sort(columns).equals(other.select(columns).sort(columns))


def sold(
    month: int, day: int, hour: float, shop: str = "north", amount: str | None = "1.50", **other: Any
) -> dict[str, Any]:
    """Return the columns of a sale in 2026."""
    minute = round(hour % 1 * 60)
    at = datetime(2026, month, day, int(hour), minute, tzinfo=UTC)
    return {"sold_at": at, "shop": shop, "amount": amount and Decimal(amount), **other}
