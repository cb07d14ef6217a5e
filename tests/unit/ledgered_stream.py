"""A stream's Delta commits without Spark: real tables, written by delta-rs with the metadata that drivers write."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction

from include.declare.event_times import PROGRESS, WatermarkProgress
from include.ground.paths import bronze_path, gold_path, rejected_path, silver_path, warehouse
from include.ground.settings import Settings
from include.read.publication import Publication, TableVersion, publish

RELEASE = "ab12cd34ef56"
RECORDS = 10
"""Rows per partition in each batch, followed by one offset without a record; two partitions."""


@dataclass
class Stream:
    """One dataset's driver as far as its commits go: `bronze(n)`, `refine(a, b)`, `publish(b)`."""

    settings: Settings
    dataset: str = "flights"
    release: str = RELEASE
    gold: tuple[str, ...] = ("carrier_hours", "route_days")
    tables: dict[str, TableVersion] = field(default_factory=dict)
    is_old: bool = False
    """Whether its commits are those of an earlier version, without the progress of the watermark."""
    progress: WatermarkProgress = field(default_factory=lambda: WatermarkProgress(timedelta(days=2)))

    def bronze(self, batch: int, generation: str = "g1", reference: dict[str, int] | None = None) -> None:
        start, end = batch * (RECORDS + 1), (batch + 1) * (RECORDS + 1)
        extra = {
            "topic": self.dataset,
            "topic_id": "topic-1",
            "query_id": "query-1",
            "offsets": {"0": [start, end], "1": [start, end]},
            "rows_by_partition": {"0": RECORDS, "1": RECORDS},
            "timestamps": [1_700_000_000_000 + batch, 1_700_000_000_999 + batch],
            "reference": reference or {},
        }
        app = f"{self.dataset}/bronze/{generation}"
        path = bronze_path(self.settings, self.dataset)
        self._commit(path, f"bronze.{self.dataset}", app, (batch, batch), 2 * RECORDS, extra | {"release": None})

    def silver(self, first: int, last: int) -> None:
        batches = last - first + 1
        latest = {"0": "2013-01-01T00:00:00Z"}
        self.progress.advance(last, json.dumps(latest))
        extra = {"rows_in": 20 * batches, "event_time_max": latest}
        if not self.is_old:
            extra |= {PROGRESS: self.progress.as_json()}
        path = silver_path(self.settings, self.dataset, self.release)
        self._refined(path, "silver", (first, last), 17 * batches, extra)

    def rejected(self, first: int, last: int) -> None:
        batches = last - first + 1
        extra = {
            "reasons": {"type": 2 * batches, "null": batches, "duplicate": batches},
            "dispositions": {"invalid": 2 * batches, "duplicate": batches},
            "warnings": {
                "late": {"validated": 17 * batches, "violations": batches, "first": [1, first]},
                "odd": {"validated": 9 * batches, "violations": 0, "first": None},
            },
        }
        path = rejected_path(self.settings, self.dataset, self.release)
        self._refined(path, "rejected", (first, last), 3 * batches, extra)

    def merge(self, table: str, first: int, last: int) -> None:
        path = gold_path(self.settings, self.dataset, self.release, table)
        self._refined(path, f"gold/{table}", (first, last), 5, {"grains": 2, "total": 100 + last})

    def refresh(self, table: str, batch: int, total: int) -> None:
        """A refresh of a gold table between two runs."""
        path = gold_path(self.settings, self.dataset, self.release, table)
        self._refined(path, f"gold/{table}/refresh", (batch, batch), 5, {"grains": 2, "total": total})

    def refine(self, first: int, last: int) -> None:
        self.silver(first, last)
        self.rejected(first, last)
        for table in self.gold:
            self.merge(table, first, last)

    def correct(self, plan: str, batch: int) -> None:
        """A plan's correction of silver at `batch`."""
        extra = {"plan": plan, "direction": 1, "batch": batch, "rows_removed": 0, "rows_added": 0, "total": 17}
        path = silver_path(self.settings, self.dataset, self.release)
        self._refined(path, f"plan/{plan}", (1, 1), 0, extra)

    def publish(self, batch: int) -> Publication:
        publication = self.publication(batch)
        publish(self.settings, publication)
        return publication

    def publication(self, batch: int) -> Publication:
        end = (batch + 1) * (RECORDS + 1)
        return Publication(self.dataset, self.release, batch, datetime.now(UTC), {0: end, 1: end}, dict(self.tables))

    def run(self, first: int, last: int) -> Publication:
        """Act as a driver for the batches [first..last]: bronze each, one refine run, publish."""
        for batch in range(first, last + 1):
            self.bronze(batch)
        self.refine(first, last)
        return self.publish(last)

    def _refined(self, path: Path, kind: str, batches: tuple[int, int], rows: int, extra: dict[str, Any]) -> None:
        name = kind.replace("/", ".") if kind.startswith("gold") else f"{kind}.{self.dataset}"
        app = f"{self.dataset}/{self.release}/{kind}"
        self._commit(path, name, app, batches, rows, extra | {"release": self.release})

    def _commit(
        self, path: Path, table: str, app_id: str, batches: tuple[int, int], rows: int, extra: dict[str, Any]
    ) -> None:
        common = {
            "dataset": self.dataset,
            "table": table,
            "app_id": app_id,
            "epoch": 1,
            "batches": list(batches),
            "rows": rows,
            "code": self.release,
        }
        version = commit(path, app_id, batches[1], common | extra)
        self.tables[table] = TableVersion(str(path.relative_to(warehouse(self.settings))), version)


def commit(path: Path, app_id: str, app_version: int, metadata: dict[str, Any] | None) -> int:
    """Commit one file that is not there to a table, which is created first; return the version."""
    table = created(path)
    now = int(time.time() * 1000)
    statistics = json.dumps({"numRecords": 1})
    table.create_write_transaction(
        [AddAction(f"b{app_version:08d}/part.parquet", 10, {}, now, True, statistics)],
        "append",
        table.schema(),
        commit_properties=CommitProperties(
            app_transactions=[Transaction(app_id, app_version)],
            custom_metadata={"userMetadata": json.dumps(metadata)} if metadata else None,
        ),
    )
    return DeltaTable(str(path)).version()


def created(path: Path) -> DeltaTable:
    """Return the table at `path`, created when it is not there."""
    if DeltaTable.is_deltatable(str(path)):
        return DeltaTable(str(path))
    path.mkdir(parents=True)
    return DeltaTable.create(str(path), pa.schema([("a", pa.int64())]))
