"""Reference tables as Delta tables of a dataset: created, loaded whole, read at any version.

Guarantee: a version is the whole table; versions are never removed, so what a batch was joined with can be read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from include.declare.dataset import Dataset
from include.declare.pipeline import ReferenceTable
from include.ground.delta_log import (
    LOG,
    LogDamaged,
    commits_descending,
    latest_version,
    open_delta,
    refuse_lost_commits,
)
from include.ground.durable_files import sync_files
from include.ground.errors import Refused, Terminal
from include.ground.paths import bronze_path, reference_path
from include.ground.settings import Settings
from include.ground.stored_path import StoredPath, arrow_files, delta_options

if TYPE_CHECKING:
    import pyarrow as pa

# All of a table goes to every task with every batch.
MOST_ROWS = 100_000
# A version is read as long as batches are there that were joined with it.
KEPT = {
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}


class ReferenceRefused(Terminal):
    """A file is not what the table is declared to be; the table stays as it is."""

    def __init__(self, file: Path, table: str, why: str) -> None:
        super().__init__(f"{file}: {why}; reference table {table} stays as it is", f'correct "{file}"')
        self.file, self.table = file, table


@dataclass(frozen=True)
class LoadResult:
    """What a load did: the version now, its rows, and whether it is a new one."""

    version: int
    rows: int
    is_new: bool


def current_versions(settings: Settings, dataset: str) -> dict[str, int]:
    """Return the newest version of each reference table that the dataset has."""
    found = {}
    for log in sorted(reference_path(settings, dataset, "*").parent.glob("*/_delta_log")):
        version = latest_version(log.parent)
        if version >= 0:
            found[log.parent.name] = version
    return found


def create_reference_tables(settings: Settings, dataset: Dataset) -> None:
    """Make version 0 of each declared table that is not there, from its file in the dataset's folder.

    Refused when bronze names it: created again, its version numbers would mean other rows.
    """
    missing = missing_tables(settings, dataset)
    named = _named_last(bronze_path(settings, dataset.name)) if missing else {}
    for table in missing:
        if table.name in named:
            raise _lost(dataset.name, table.name, named[table.name])
        rows = read_file(table, dataset.folder / "reference" / f"{table.name}.csv")
        _write(reference_path(settings, dataset.name, table.name), rows, "ignore")


def missing_tables(settings: Settings, dataset: Dataset) -> list[ReferenceTable]:
    """Return the declared tables that are not there yet."""
    there = current_versions(settings, dataset.name)
    return [table for table in dataset.pipeline.reference if table.name not in there]


def validate_reference_tables(settings: Settings, dataset: Dataset) -> None:
    """Raise unless each declared table exists with these columns, or can be loaded from its file."""
    for refused in reference_problems(settings, dataset):
        raise refused


def reference_problems(settings: Settings, dataset: Dataset) -> Iterator[Terminal]:
    """Yield why a declared table cannot be used: it is not there and its file is wrong, or it has other columns."""
    missing = missing_tables(settings, dataset)
    for table in dataset.pipeline.reference:
        try:
            if table in missing:
                read_file(table, dataset.folder / "reference" / f"{table.name}.csv")
            else:
                read_version(settings, dataset.name, table, 0)
        except Terminal as error:
            yield error


def _named_last(bronze: Path) -> Mapping[str, int]:
    """The versions that bronze's last batch names."""
    found = (commit.metadata or {} for commit in commits_descending(bronze)) if (bronze / LOG).is_dir() else iter(())
    named: Mapping[str, int] = next((metadata.get("reference", {}) for metadata in found if "offsets" in metadata), {})
    return named


def load_reference(settings: Settings, dataset: Dataset, name: str, file: Path) -> LoadResult:
    """Make a file the table's next version, from the next batch on; the same rows again are not a new version.

    Raises Refused.
    """
    table = declared_table(dataset, name)
    rows = read_file(table, file)
    create_reference_tables(settings, dataset)
    now = current_versions(settings, dataset.name)[name]
    if read_version(settings, dataset.name, table, now).equals(rows):
        return LoadResult(now, rows.num_rows, is_new=False)
    _write(reference_path(settings, dataset.name, name), rows, "overwrite")
    return LoadResult(current_versions(settings, dataset.name)[name], rows.num_rows, is_new=True)


def declared_table(dataset: Dataset, name: str) -> ReferenceTable:
    """Return a declared table. Raises Refused."""
    known = {table.name: table for table in dataset.pipeline.reference}
    if name not in known:
        remedy = f"declared in its pipeline.yaml: {', '.join(sorted(known)) or 'none'}"
        raise Refused(f"{dataset.name} has no reference table {name!r}", remedy, code="reference-unknown")
    return known[name]


def read_version(settings: Settings, dataset: str, table: ReferenceTable, version: int) -> pa.Table:
    """Return a version's rows, the declared columns alone, in the order of the keys."""
    from deltalake.exceptions import DeltaError, TableNotFoundError

    path = reference_path(settings, dataset, table.name)
    try:
        found = open_delta(path, version)
        refuse_lost_commits(path, version)
        lacking = sorted(set(table.names) - {field.name for field in found.schema().fields})
        if lacking:
            what = f"{dataset}: reference table {table.name}, version {version}, has no column {', '.join(lacking)}"
            remedy = "declare the new columns as a reference table of another name"
            raise Terminal(f"{what}; nothing was done", remedy, code="reference-changed", lacking=lacking)
        rows: pa.Table = found.to_pyarrow_dataset(filesystem=arrow_files(path)).to_table(columns=table.names)
    except (TableNotFoundError, DeltaError, FileNotFoundError, LogDamaged) as error:
        raise _lost(dataset, table.name, version) from error
    return rows.cast(arrow_schema(table)).sort_by([(key, "ascending") for key in table.keys])


def read_file(table: ReferenceTable, file: Path) -> pa.Table:
    """Return the declared columns of a CSV file with a header, in the order of the keys; ReferenceRefused."""
    import pyarrow as pa
    import pyarrow.csv as csv

    schema = arrow_schema(table)
    options = csv.ConvertOptions(
        column_types=schema, include_columns=schema.names, null_values=[""], strings_can_be_null=True
    )
    try:
        rows = csv.read_csv(file, convert_options=options)
    except FileNotFoundError as error:
        raise ReferenceRefused(file, table.name, "the file does not exist") from error
    except (pa.ArrowInvalid, pa.ArrowKeyError, OSError) as error:
        raise ReferenceRefused(file, table.name, str(error)) from error
    _refuse_keys(table, rows, file)
    if rows.num_rows == 0:
        raise ReferenceRefused(file, table.name, "has no rows")
    if rows.num_rows > MOST_ROWS:
        raise ReferenceRefused(file, table.name, f"has {rows.num_rows:,} rows, {MOST_ROWS:,} are allowed")
    return rows.sort_by([(key, "ascending") for key in table.keys])


def _refuse_keys(table: ReferenceTable, rows: pa.Table, file: Path) -> None:
    """A duplicate key would double the events that are joined with it."""
    import pyarrow.compute as pc

    for key in table.keys:
        if rows[key].null_count:
            raise ReferenceRefused(file, table.name, f"{rows[key].null_count} rows have no {key}")
    counted = rows.group_by(list(table.keys)).aggregate([([], "count_all")])
    twice = counted.filter(pc.field("count_all") > 1).drop_columns(["count_all"]).to_pylist()
    if twice:
        raise ReferenceRefused(file, table.name, f"key {twice[0]} occurs more than once")


def arrow_schema(table: ReferenceTable) -> pa.Schema:
    """Return the declared columns as Arrow has them."""
    import pyarrow as pa

    types: Mapping[str, pa.DataType] = {
        "string": pa.string(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "date": pa.date32(),
    }
    return pa.schema([(name, types[kind]) for name, kind in table.columns])


def _lost(dataset: str, table: str, version: int) -> Terminal:
    """Return the error of a version that batches are joined with and that is not there."""
    what = f"{dataset}: reference table {table} has no version {version}, which batches of bronze are joined with"
    return Terminal(f"{what}; nothing was done", "restore its folder from a backup", code="reference-lost")


def _write(path: Path, rows: pa.Table, mode: str) -> None:
    from deltalake import write_deltalake

    path.parent.mkdir(parents=True, exist_ok=True)
    configuration, options = KEPT if mode == "ignore" else None, delta_options(path)
    write_deltalake(str(path), rows, mode=mode, configuration=configuration, storage_options=options)  # type: ignore[call-overload]
    # Small and rare: bronze's commits name its versions, so a power cut must not take one.
    if not isinstance(path, StoredPath):
        sync_files((file for file in path.rglob("*") if file.is_file()), path.parents[1])
