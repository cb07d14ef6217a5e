"""Published tables as polars frames and Arrow datasets, several from one read of the publications.

Every column of a table is read, also those whose names begin with `_`: they are the row's origin. Select
to get fewer. Nothing is copied: a table is its Delta log at one version, read through delta-rs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from include.ground.delta_log import LogDamaged, refuse_lost_commits
from include.ground.errors import Terminal
from include.ground.settings import Settings, load_settings
from include.ground.table_files import add_actions
from include.read.publication import PublishedTable, published_tables

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
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        refuse_lost_commits(table.path, table.version)
        try:
            return DeltaTable(str(table.path), version=table.version)
        except (DeltaError, OSError):
            # The owner may remove a superseded checkpoint between the listing of the log and the opening of it.
            return DeltaTable(str(table.path), version=table.version)
    except LogDamaged as error:
        raise PublishedVersionGone(table, error.what) from error
    except (DeltaError, OSError) as error:
        raise PublishedVersionGone(table, str(error).splitlines()[0]) from error


def open_dataset(table: PublishedTable) -> Any:
    """Return a pyarrow Dataset of a table at its published version."""
    return open_table(table).to_pyarrow_dataset(filesystem=_files_of(table.path))


def _files_of(path: Path) -> Any:
    # Arrow's own file system reads a local table without a detour through Python; delta-rs's would copy each block.
    from pyarrow import fs

    return fs.SubTreeFileSystem(str(path), fs.LocalFileSystem())


def table_stats(table: PublishedTable) -> TableStats:
    """Return rows, size and files of a table at its published version, from its Delta log alone."""
    import pyarrow.compute as pc

    files = add_actions(open_table(table))
    counts = files["num_records"]
    rows = None if counts.null_count else int(pc.sum(counts).as_py() or 0)
    return TableStats(table, rows, int(pc.sum(files["size_bytes"]).as_py() or 0), len(files))
