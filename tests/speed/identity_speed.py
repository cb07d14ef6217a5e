"""How long a run takes to find its duplicates among many random identities: make bench-identities.

Builds a silver table of random UUIDs within one horizon, as compaction leaves it, and its identity index; then times
the whole look-up of runs of new records, one in 200 of them a duplicate: of one of the last million rows, as when a
producer repeats what it sent, or of any row (`--scattered`). Memory is this process's own without mapped files.
With `--folder` the table and its index stay there, and the next call only times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

from include.declare.dataset import Dataset, declared_dataset
from include.ground.settings import Settings
from spark_jobs.backends.local.arrow_files import rows_in_files
from spark_jobs.backends.local.duckdb_session import duckdb_session, session_for
from spark_jobs.backends.local.identities import IdentityLookup, identify_files, rank_copies
from spark_jobs.tables.data_files import TableSpec, written_file
from spark_jobs.tables.delta_table import Table

COLUMNS = (
    StructType()
    .add("event_id", StringType())
    .add("occurred_at", TimestampType())
    .add("_topic", StringType())
    .add("_partition", IntegerType())
    .add("_offset", LongType())
    .add("_timestamp", TimestampType())
    .add("_batch_id", LongType())
    .add("_month", StringType())
)
BOUNDED = ("occurred_at", "event_id", "_partition", "_offset", "_batch_id")
ROWS_PER_FILE = 2_000_000
DUPLICATES = 200
REPEATS = 5
ROWS = """
select {identity} as event_id, timestamptz '2013-03-01 00:00Z' + to_seconds(n % 172800) as occurred_at,
    'bench' as _topic, (n % 2)::int as _partition, n // 2 as _offset,
    timestamptz '2013-03-03 00:00Z' as _timestamp, n // 100000 as _batch_id
from range({first}, {last}) as numbers(n)
"""
AGAIN = """
select event_id, occurred_at, _topic, _partition, _offset + {later} as _offset, _timestamp,
    _batch_id + {later} as _batch_id
from silver
where _batch_id >= {batch} and (_offset * 2 + _partition) % {step} = {rest}
limit {duplicates}
"""


def main() -> None:
    """Print one JSON object with the measured figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--identities", type=int, default=100_000_000)
    parser.add_argument("--scattered", action="store_true")
    parser.add_argument("--runs", type=int, nargs="*", default=[5_000, 1_000_000])
    parser.add_argument("--folder", type=Path)
    chosen = parser.parse_args()
    if chosen.folder is not None:
        print(json.dumps(measured(chosen.folder, chosen), indent=1))
        return
    with tempfile.TemporaryDirectory(prefix="headrace-identities-") as folder:
        print(json.dumps(measured(Path(folder), chosen), indent=1))


def measured(folder: Path, chosen: argparse.Namespace) -> dict[str, object]:
    """Return seconds to build the index and to look up runs of these sizes, sizes in bytes, and memory."""
    identities = chosen.identities
    dataset = declared_dataset(Settings(state=folder), "flights")
    spec = TableSpec("silver.flights", folder / "silver", COLUMNS, "_month", BOUNDED)
    table = Table(spec)
    fill(table, identities)
    lookup = IdentityLookup(dataset, table, folder / "identities", owns=True)
    given = folder / "given.parquet"
    latest = identities if chosen.scattered else min(identities, 1_000_000)
    write_run(table, identities, 10, latest, given)
    build = timed(lambda: look_up(dataset, lookup, given))
    report: dict[str, object] = {
        "identities": identities,
        "duplicates are of the last": latest,
        "seconds to build the index": round(build, 1),
        "index bytes per identity": size(folder / "identities") / identities,
        "silver bytes per identity": round(size(folder / "silver") / identities, 1),
    }
    for rows in chosen.runs:
        times = []
        for _ in range(REPEATS):
            expected = write_run(table, identities, rows, latest, given)
            before = time.perf_counter()
            found = look_up(dataset, lookup, given)
            times.append(time.perf_counter() - before)
            assert found == expected, f"{found} duplicates found, {expected} are there"
        report[f"seconds of a run of {rows:,}"] = {
            "median": round(statistics.median(times), 3),
            "each": [round(seconds, 3) for seconds in times],
        }
    report["peak memory, MB"] = peak_anonymous_megabytes
    return report


def fill(table: Table, identities: int) -> None:
    """Commit files of random UUIDs."""
    for first in range(table.rows, identities, ROWS_PER_FILE):
        path = table.spec.path / f"f{first}" / "_month=2013-03" / "part.parquet"
        path.parent.mkdir(parents=True)
        with duckdb_session() as duck:
            last = min(first + ROWS_PER_FILE, identities)
            duck.save_file(ROWS.format(identity="uuid()::varchar", first=first, last=last), path)
        table.commit("fill", first, {}, [written_file(table.spec, path)])


def write_run(table: Table, identities: int, rows: int, latest: int, path: Path) -> int:
    """Write a run of new records; return how many of them are duplicates of the `latest` rows of silver."""
    duplicates = rows // DUPLICATES
    new = ROWS.format(identity="uuid()::varchar", first=identities, last=identities + rows - duplicates)
    with duckdb_session() as duck:
        duck.view_table("silver", table, table.files())
        if not duplicates:
            duck.save_file(new, path)
            return 0
        again = AGAIN.format(
            later=identities + rows,
            batch=(identities - latest) // 100_000,
            step=latest // duplicates,
            rest=int(time.time()) % (latest // duplicates),
            duplicates=duplicates,
        )
        duck.save_file(f"{new} union all ({again})", path)
        return duck.count(f"select * from read_parquet('{path}') where _offset > {identities + rows - 1}")


def look_up(dataset: Dataset, lookup: IdentityLookup, given: Path) -> int:
    """Return how many rows of the run are duplicates, found as a run of silver finds them."""
    global peak_anonymous_megabytes
    rows = identify_files(dataset, lookup._silver, [given], rows_in_files([given]))
    with session_for(rows_in_files([given])) as duck:
        lookup.view_candidates(duck, "candidates", [given], rows)
        rank_copies(duck, dataset, "candidates_sharing", "candidates")
        peak_anonymous_megabytes = max(peak_anonymous_megabytes, anonymous_megabytes())
        return duck.count("select * from duplicates")


peak_anonymous_megabytes = 0


def anonymous_megabytes() -> int:
    """Return this process's memory without mapped files."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) // 1024


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
