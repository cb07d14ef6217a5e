"""Published tables as polars frames and Arrow datasets, several from one read of the publications.

Every column of a table is read, also those whose names begin with `_`: they are the row's origin. Select
to get fewer. Nothing is copied: a table is its Delta log at one version, read through delta-rs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.ground.app_ids import expiry_app_id
from include.ground.delta_log import (
    LogDamaged,
    add_actions,
    commits,
    found_transaction,
    newest_metadata,
    open_delta,
    refuse_lost_commits,
)
from include.ground.errors import Terminal
from include.ground.paths import warehouse
from include.ground.settings import Settings, load_settings
from include.ground.stored_path import arrow_files, delta_options
from include.read.publication import Publication, PublishedTable, published_tables

if TYPE_CHECKING:
    import polars as pl
    from deltalake import DeltaTable

RECORD_LAYERS = ("bronze", "silver", "rejected")
"""The layers whose rows are records."""
LAYERS = (*RECORD_LAYERS, "gold", "analysis")


class TableUnknown(Terminal):
    """No publication has this table; `known` are those that are published."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        remedy = f"published are: {', '.join(known)}" if known else "nothing is published yet: headrace up"
        super().__init__(f"table {name!r} is unknown; nothing was read", remedy)
        self.name = name
        self.known = tuple(known)


class PublishedVersionGone(Terminal):
    """The publication names a version of a table that cannot be opened any more."""

    def __init__(self, table: PublishedTable, why: str) -> None:
        super().__init__(
            f"{table.name}: version {table.version} is published but cannot be opened at {table.path} ({why})",
            f"headrace audit --dataset {table.dataset}",
        )
        self.table = table


@dataclass(frozen=True)
class TableStats:
    """What the Delta log records of a published table: `rows` and `files`, `size` in bytes; rows None when a file's
    statistics lack the count."""

    table: PublishedTable
    rows: int | None
    size: int
    files: int


@dataclass(frozen=True)
class PinnedTables:
    """The published tables of one read: all queries see the same versions, however far streams advance."""

    tables: Mapping[str, PublishedTable]

    def table(self, name: str) -> PublishedTable:
        """Return path and version of the table `name` (`gold.carrier_hours`). Raises TableUnknown."""
        if name not in self.tables:
            raise TableUnknown(name, sorted(self.tables))
        return self.tables[name]

    def arrow(self, name: str) -> Any:
        """Return the table as a pyarrow Dataset with all its columns; filters prune files by their statistics."""
        return open_dataset(self.table(name))

    def read(self, name: str, *, columns: Sequence[str] | None = None) -> pl.LazyFrame:
        """Return the table as a polars LazyFrame, all columns or the given; filters go down to the files."""
        import polars as pl

        frame = pl.scan_pyarrow_dataset(self.arrow(name))
        return frame if columns is None else frame.select(list(columns))

    def facts(self, name: str) -> TableStats:
        """Return rows, size and files of a table from its Delta log alone; no data file is opened."""
        return table_stats(self.table(name))


def layer_order(name: str) -> tuple[int, str]:
    """Return a key that orders tables as a record meets them: bronze, silver, rejected, gold."""
    layer = name.split(".", 1)[0]
    return (LAYERS.index(layer) if layer in LAYERS else len(LAYERS), name)


def pinned(settings: Settings | None = None) -> PinnedTables:
    """Return all tables at the published versions, from one read of the publications."""
    return PinnedTables(published_tables(settings or load_settings()))


def read(name: str, *, columns: Sequence[str] | None = None) -> pl.LazyFrame:
    """Return a published table as a polars LazyFrame, pinned at the version published now.

    `name` is `bronze|silver|rejected.<dataset>` or `gold.<table>`. Several tables that must agree: use `pinned()`.
    """
    return pinned().read(name, columns=columns)


def read_arrow(name: str) -> Any:
    """Return a published table as a pyarrow Dataset, pinned at the version published now."""
    return pinned().arrow(name)


def open_table(table: PublishedTable) -> DeltaTable:
    """Open the Delta table at its published version; PublishedVersionGone when the log does not have it whole."""
    from deltalake.exceptions import DeltaError

    try:
        refuse_lost_commits(table.path, table.version)
        try:
            return open_delta(table.path, table.version)
        except (DeltaError, OSError):
            # The owner may remove a superseded checkpoint between the listing of the log and the opening of it.
            return open_delta(table.path, table.version)
    except LogDamaged as error:
        raise PublishedVersionGone(table, error.what) from error
    except (DeltaError, OSError) as error:
        raise PublishedVersionGone(table, str(error).splitlines()[0]) from error


def open_dataset(table: PublishedTable) -> Any:
    """Return a pyarrow Dataset of a table at its published version."""
    return open_table(table).to_pyarrow_dataset(filesystem=arrow_files(table.path))


def table_stats(table: PublishedTable) -> TableStats:
    """Return rows, size and files of a table at its published version, from its Delta log alone."""
    import pyarrow.compute as pc

    files = add_actions(open_table(table))
    counts = files["num_records"]
    rows = None if counts.null_count else int(pc.sum(counts).as_py() or 0)
    return TableStats(table, rows, int(pc.sum(files["size_bytes"]).as_py() or 0), len(files))


def columns_of(settings: Settings, publication: Publication) -> dict[str, dict[str, str]]:
    """Return the columns and types of the tables of a publication, by full name; a table that is gone has none."""
    root = warehouse(settings)
    return {name: table_columns(root / table.path) for name, table in publication.tables.items()}


def table_columns(path: Path) -> dict[str, str]:
    """Return the columns of a Delta table with their types, without those that partition it."""
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(str(path), delta_options(path)):
        return {}
    table = open_delta(path)
    partitions, declared = table.metadata().partition_columns, json.loads(table.schema().to_json())
    return {each["name"]: _text(each["type"]) for each in declared["fields"] if each["name"] not in partitions}


def _text(kind: str | Mapping[str, object]) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind, sort_keys=True)


BATCH = 20_000
"""Rows that are read at once."""


def bounded_reader(rows: Any, columns: Sequence[str]) -> Any:
    """Return a reader of some columns of a pyarrow Dataset that holds a few batches at a time.

    A Dataset itself is read ahead of a slower consumer, by up to a gigabyte.
    """
    import pyarrow.dataset as pd

    scanner = rows.scanner(
        columns=list(columns),
        batch_size=BATCH,
        batch_readahead=1,
        fragment_readahead=1,
        fragment_scan_options=pd.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True),
        use_threads=False,
    )
    return scanner.to_reader()


def first_unexpired_batch(table: PublishedTable) -> int:
    """Return the first batch that has not expired from a published bronze, silver or rejected table; 0: none has."""
    layer = table.name.partition(".")[0]
    owner = layer if layer == "bronze" else table.release
    app_id = expiry_app_id(table.dataset, owner, layer)
    return max(0, found_transaction(open_table(table), table.path, app_id) or 0)


def first_complete_batch(reading: PinnedTables, dataset: str) -> int:
    """Return the first batch of which bronze, silver and rejected have all rows at their published versions."""
    return max(first_unexpired_batch(reading.table(f"{layer}.{dataset}")) for layer in RECORD_LAYERS)


@dataclass(frozen=True)
class BatchOffsets:
    """One batch's offsets [start, end) of one partition, its rows, and the topic's id.

    `latest_ms`: the Kafka time of the batch's latest record, None when it has none.
    """

    batch: int
    partition: int
    start: int
    end: int
    rows: int
    topic_id: str
    latest_ms: int | None = None


def batch_offsets(bronze: Path, batch: int) -> list[BatchOffsets]:
    """Return the offset ranges of all batches up to `batch` of a bronze table, in the order of its commits."""
    return [each for metadata in _batch_metadata(bronze) for each in commit_ranges(metadata) if each.batch <= batch]


def first_batch_since(bronze: Path, since: datetime) -> int | None:
    """Return the first batch that has a record of Kafka time `since` or later; None when there is none."""
    since_ms = int(since.timestamp() * 1000)
    later = (m for m in _batch_metadata(bronze) if m["timestamps"] and m["timestamps"][1] >= since_ms)
    return next((int(metadata["batches"][0]) for metadata in later), None)


def _batch_metadata(bronze: Path) -> Iterator[Mapping[str, Any]]:
    return (commit.metadata for commit in commits(bronze) if commit.metadata and "offsets" in commit.metadata)


def commit_ranges(metadata: Mapping[str, Any]) -> Iterator[BatchOffsets]:
    """Yield the offsets that the metadata of one commit names, by partition."""
    counted, batch = metadata["rows_by_partition"], int(metadata["batches"][0])
    topic, latest = str(metadata["topic_id"]), (metadata.get("timestamps") or (None, None))[1]
    for partition, (start, end) in metadata["offsets"].items():
        rows = int(counted.get(partition, 0))
        yield BatchOffsets(batch, int(partition), int(start), int(end), rows, topic, latest)


REFRESH_KEY = "holds"
"""The key of a commit's metadata under which the state is stored."""


@dataclass(frozen=True)
class RefreshState:
    """How far a table with a `refresh` is refreshed: with rows of silver of batches up to `batch`, -1 for none.

    With an interval `at` is the time of the last refresh, in seconds since 1970. With `on_close` the table has the
    rows that `watermark` has passed; `event_times` are the greatest event times by partition, from which the watermark
    is computed; no row of an open session is before `since`, None when that is not known.
    """

    batch: int = -1
    at: float = 0.0
    watermark: datetime | None = None
    event_times: Mapping[str, datetime] = field(default_factory=dict)
    since: datetime | None = None

    def as_json(self) -> dict[str, Any]:
        moments = {"watermark": self.watermark, "since": self.since}
        known = {name: moment.isoformat() for name, moment in moments.items() if moment is not None}
        times = {partition: time.isoformat() for partition, time in sorted(self.event_times.items())}
        return {"batch": self.batch, "at": self.at, **known, **({"event_times": times} if times else {})}


def read_refresh_state(metadata: Mapping[str, Any]) -> RefreshState:
    """Return the state that a commit's metadata stores; that of an empty table when it stores none."""
    found = metadata.get(REFRESH_KEY, {})
    times = {partition: datetime.fromisoformat(text) for partition, text in found.get("event_times", {}).items()}
    moments = {name: datetime.fromisoformat(found[name]) for name in ("watermark", "since") if name in found}
    return RefreshState(int(found.get("batch", -1)), float(found.get("at", 0)), event_times=times, **moments)


def stored_refresh_state(table: Path, version: int) -> RefreshState:
    """Return the state as of a version of a table's own log, which may be ahead of the publication."""
    return read_refresh_state(newest_metadata(table, version, REFRESH_KEY))
