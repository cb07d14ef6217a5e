"""What a run that changes few of many random keys writes to a `latest` table: make bench-gold-keys.

Loads 1,000,000 random keys, then commits runs of 10 changed rows, with whole files as before adr-0007 and with pieces.
Bytes are those of new data files and commits. The disk use after an hour assumes a run a second, or one after the
other where a run takes longer, and that nothing is vacuumed within it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import polars as pl
from pyspark.sql import SparkSession

from include.declare.gold import LatestGold
from include.ground.settings import Settings
from spark_jobs.backends.local.duckdb_session import duckdb_session
from spark_jobs.backends.spark_session import open_session
from spark_jobs.layers.gold_files import PIECES, GoldTable, PiecePolicy
from spark_jobs.layers.gold_layer import GoldCommit, merge_by_spark, update_of_run
from spark_jobs.layers.gold_rows import gold_rows
from spark_jobs.layers.silver_tables import MONTH, RefineRun, SilverTables
from spark_jobs.tables.data_files import DataFile, TableSpec, no_rows
from spark_jobs.tables.delta_table import Table, partitioned_schema

GOLD = LatestGold("users", "'all'", ("user_id",), ("at",), (("score", "score"), ("country", "country"), ("at", "at")))
COLUMNS = "user_id string, at timestamp, score int, country string, _partition int, _offset long, _batch_id long"
WHOLE = PiecePolicy(uncut=1 << 60)
ROWS = """
select md5(({pick} % {keys})::varchar) as user_id,
    timestamptz '2024-01-01 00:00Z' + to_seconds({batch} * 3600 + n % 3600) as at,
    (hash(n + 7) % 1000)::int as score, chr((65 + hash(n) % 26)::int) as country,
    0 as _partition, {batch} * 10000000 + n as _offset, {batch}::bigint as _batch_id, 'all' as _month
from range({rows}) as numbers(n)
"""
TARGET = 10


def main() -> int:
    """Print the figures of both layouts as JSON; return 0 when the bytes for a changed row fell by the target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--changed", type=int, default=10)
    parser.add_argument("--piece", type=int, default=PIECES.smallest, help="least size of a piece, in bytes")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-gold-keys-") as name:
        spark = open_session(Settings(state=Path(name) / "state", driver_memory="2g"), "gold keys")
        policies = {"whole": WHOLE, "pieces": PiecePolicy(smallest=chosen.piece)}
        found = {kind: measured(spark, Path(name) / kind, policy, chosen) for kind, policy in policies.items()}
    ratio = found["whole"]["bytes_per_changed_row"] / found["pieces"]["bytes_per_changed_row"]
    print(json.dumps(found | {"ratio": round(ratio, 1), "target": TARGET}, indent=1))
    return 0 if ratio >= TARGET else 1


def measured(spark: SparkSession, folder: Path, policy: PiecePolicy, chosen: argparse.Namespace) -> dict[str, Any]:
    """Load the keys, let one run cut the files, and measure the runs after it."""
    silver, target = tables(spark, folder, policy)
    commit(target, silver, 0, ROWS.format(keys=chosen.keys, rows=chosen.keys, batch=0, pick="n"))
    first = run(target, silver, 1, chosen)
    before, seconds = size_of(target), list[float]()
    for batch in range(2, chosen.runs + 2):
        seconds.append(run(target, silver, batch, chosen))
    written = size_of(target) - before
    began = time.monotonic()
    rows = pl.read_delta(str(target.table.spec.path)).height
    return {
        "keys": rows,
        "table_bytes": sum(file.size for file in target.table.files()),
        "files": target.table.file_count,
        "first_run_seconds": round(first, 2),
        "run_seconds": round(median(seconds), 3),
        "bytes_per_changed_row": written // (chosen.runs * chosen.changed),
        "disk_after_an_hour": int(before + written / chosen.runs * 3600 / max(1.0, median(seconds))),
        "read_seconds": round(time.monotonic() - began, 3),
    }


def run(target: GoldTable, silver: Table, batch: int, chosen: argparse.Namespace) -> float:
    """Commit one run of changed rows; return its seconds without silver's."""
    pick = f"hash(n + {batch * 1_000_003})"
    return commit(target, silver, batch, ROWS.format(keys=chosen.keys, rows=chosen.changed, batch=batch, pick=pick))


def tables(spark: SparkSession, folder: Path, policy: PiecePolicy) -> tuple[Table, GoldTable]:
    """Create silver and the gold table."""
    schema = partitioned_schema(no_rows(spark, _parsed(spark)).schema, MONTH)
    silver = Table(TableSpec("silver.bench", folder / "silver", schema, MONTH, ("user_id", "_batch_id")))
    gold = partitioned_schema(gold_rows(GOLD).computed(no_rows(spark, silver.spec.data_schema), 0).schema, MONTH)
    table = Table(TableSpec("gold.users", folder / "gold", gold, MONTH, ("user_id", "_last_batch")))
    return silver, GoldTable(GOLD, table, spark, "bench/gold", policy)


def _parsed(spark: SparkSession) -> Any:
    return spark.sql(
        "select " + ", ".join(f"cast(null as {c.split()[1]}) {c.split()[0]}" for c in COLUMNS.split(", "))
    ).schema


def commit(target: GoldTable, silver: Table, batch: int, sql: str) -> float:
    """Commit the rows of a query to silver and to gold; return the seconds for gold."""
    with duckdb_session() as duck:
        fresh: list[DataFile] = duck.write(sql, silver, f"b{batch:08}")
    silver.commit("bench/silver", batch, {}, fresh)
    writer = SimpleNamespace(dataset=SimpleNamespace(name="bench", release="r1"), silver=silver)
    began = time.monotonic()
    run, known = RefineRun(batch, batch, 1), cast("SilverTables", writer)
    update = update_of_run(target, known, run, None)
    merge_by_spark(GoldCommit(target, known, update, target.app_id, batch, run.facts(known.dataset)))
    return time.monotonic() - began


def size_of(target: GoldTable) -> int:
    """Return the bytes of all files of the table: current, replaced, and the log's."""
    return sum(path.stat().st_size for path in target.table.spec.path.rglob("*") if path.is_file())


if __name__ == "__main__":
    sys.exit(main())
