"""What the last balanced audit verified, so that the next one reads only newer records (docs/architecture.md §4).

Batches count as verified only while bronze, silver and rejected hold exactly the rows that were verified. A
file with the same size and modification time counts as unchanged. If other files replaced some, which are kept for a
while (`retention.versions`), the rows of both are compared, so that rows stay verified when compaction rewrites them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb

from include.audit.bronze import CommittedRange
from include.audit.files import READ_ERRORS, first_line
from include.audit.kafka import Topic
from include.ground.delta_log import add_actions
from include.ground.paths import verified_history_path
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier
from include.read.memory_database import files_sql, memory_database
from include.read.publication import Publication
from include.read.published_tables import RECORD_LAYERS, PinnedTables, open_table
from include.state.json_file import JsonFile


def row_digest(database: Any, rows: str, columns: Sequence[str]) -> tuple[int, int]:
    """Return the number of `rows` (a relation, maybe with a condition), and the sum of their hashes modulo 2^64."""
    marks = f"select hash({', '.join(map(sql_identifier, columns))}) as mark from {rows}"
    sql = f"select count(*), (coalesce(sum(mark), 0) % {2**64})::ubigint from ({marks})"
    found, digest = database.execute(sql).fetchall()[0]
    return int(found), int(digest)


MEMORY = "1GB"
REQUESTED = "requested"


@dataclass(frozen=True)
class VerifiedFile:
    """A data file: bytes, and the time of its last change."""

    size: int
    modified_ns: int


VerifiedFiles = Mapping[str, VerifiedFile]
"""By path below the table's folder."""


@dataclass(frozen=True)
class VerifiedGold:
    """How far a gold table was verified: with silver up to `batch`, and with what `watermark` had closed (`on_close`).

    `decided`: the columns that keep by what a row is the newest were right too (`latest`). `expired`: rows of expired
    records, which could not be compared.
    """

    batch: int
    watermark: datetime | None = None
    decided: bool = False
    expired: int = 0


@dataclass(frozen=True)
class VerifiedHistory:
    """A publication that was balanced: its batch, the end offsets by partition, the files by table, when it was found.

    `records` by partition: the counts of PartitionBalance, of all batches up to it. `lost`: ranges whose loss was
    accepted. `gold`: how far each gold table was verified. `bronze_version` is the last commit that was read.
    """

    release: str
    batch: int
    at: datetime
    topic_id: str
    bronze_version: int
    offsets: Mapping[str, int]
    files: Mapping[str, VerifiedFiles]
    records: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    lost: tuple[CommittedRange, ...] = ()
    gold: Mapping[str, VerifiedGold] = field(default_factory=dict)
    duckdb: str = duckdb.__version__


@dataclass(frozen=True)
class AuditScope:
    """What an audit reads: the records after `verified`, or all, because of `why_all`. `reached`: what counts as
    verified if the audit is balanced; None when a file cannot be read.
    """

    verified: VerifiedHistory | None = None
    why_all: str = REQUESTED
    reached: VerifiedHistory | None = None

    @property
    def batch(self) -> int:
        """The last batch that is verified, -1 for none."""
        return -1 if self.verified is None else self.verified.batch

    @property
    def bronze_version(self) -> int:
        """The last version of bronze whose commits are verified, -1 for none."""
        return -1 if self.verified is None else self.verified.bronze_version

    @property
    def ends(self) -> Mapping[str, int]:
        """The offsets up to which partitions are verified."""
        return {} if self.verified is None else self.verified.offsets

    def records(self, partition: int, count: str) -> int:
        """Return a count of PartitionBalance (`kafka`, `bronze`, …) of what is verified."""
        return 0 if self.verified is None else self.verified.records.get(str(partition), {}).get(count, 0)

    @property
    def lost(self) -> tuple[CommittedRange, ...]:
        return () if self.verified is None else self.verified.lost

    def end(self, partition: int) -> int:
        return self.ends.get(str(partition), 0)

    def with_gold(self, gold: Mapping[str, VerifiedGold]) -> AuditScope:
        """Return it with how far gold tables are verified if the audit is balanced."""
        return self if self.reached is None else replace(self, reached=replace(self.reached, gold=gold))

    def unchanged(self, table: str) -> frozenset[str]:
        """Return the files of a table that were verified and have not been touched."""
        if self.verified is None or self.reached is None:
            return frozenset()
        before, now = self.verified.files.get(table, {}), self.reached.files.get(table, {})
        return frozenset(path for path, file in now.items() if before.get(path) == file)


def history_file(settings: Settings, dataset: str) -> JsonFile[VerifiedHistory]:
    """Return the file of what was verified of a dataset."""
    return JsonFile(verified_history_path(settings, dataset), VerifiedHistory, durable=False)


def full_scope(publication: Publication, tables: PinnedTables, topic: Topic) -> AuditScope:
    """Return the scope of an audit that reads all records."""
    return replace(audit_scope(None, publication, tables, topic), why_all=REQUESTED)


def audit_scope(
    history: VerifiedHistory | None, publication: Publication, tables: PinnedTables, topic: Topic
) -> AuditScope:
    """Return what an audit of `publication` and its tables has to read, given what was verified before."""
    known = history.files if history else {}
    batch = -1 if history is None else history.batch
    layers = [f"{layer}.{publication.dataset}" for layer in RECORD_LAYERS]
    try:
        files = {name: _current_files(tables, name, known.get(name, {})) for name in tables.tables}
        changed = [
            name
            for name in layers
            if history is not None and not _have_same_rows(tables, name, files[name], known.get(name, {}), batch)
        ]
    except READ_ERRORS as error:
        return AuditScope(None, f"a file cannot be read: {first_line(error)}")
    reached = VerifiedHistory(
        publication.release,
        publication.batch,
        publication.published_at,
        topic.topic_id,
        tables.table(layers[0]).version,
        {str(partition): end for partition, end in publication.offsets.items()},
        files,
    )
    why = _why_all(history, reached, changed)
    return AuditScope(None if why else history, why, reached)


def _why_all(history: VerifiedHistory | None, reached: VerifiedHistory, changed: list[str]) -> str:
    """Return why nothing of the history counts as verified, "" if it does."""
    if history is None:
        return "no balanced audit before"
    if history.release != reached.release:
        return f"release {history.release} was audited before"
    if history.duckdb != reached.duckdb:
        return f"audited before with DuckDB {history.duckdb}"
    if history.topic_id != reached.topic_id:
        return "another topic was audited before"
    ends = history.offsets.items()
    if history.batch > reached.batch or any(end > reached.offsets.get(partition, 0) for partition, end in ends):
        return f"batch {history.batch} was audited before"
    if changed:
        return f"rows of batches up to {history.batch} may have changed in {', '.join(changed)}"
    return ""


def _current_files(tables: PinnedTables, name: str, known: VerifiedFiles) -> dict[str, VerifiedFile]:
    """Return a table's files as they are now; unmodified ones are those of `known`."""
    table = tables.table(name)
    found = {}
    for path in map(unquote, add_actions(open_table(table))["path"].to_pylist()):
        stat, before = (table.path / path).stat(), known.get(path)
        same = before is not None and is_unmodified(before, stat)
        found[path] = before if before is not None and same else VerifiedFile(stat.st_size, stat.st_mtime_ns)
    return found


def is_there(path: Path, file: VerifiedFile) -> bool:
    """Whether there is a file that is unmodified since it was verified."""
    try:
        return is_unmodified(file, path.stat())
    except FileNotFoundError:
        return False


def is_unmodified(file: VerifiedFile, stat: os.stat_result) -> bool:
    """Whether a file has the size and the time of change that it had when it was verified."""
    return (file.size, file.modified_ns) == (stat.st_size, stat.st_mtime_ns)


def _have_same_rows(tables: PinnedTables, name: str, files: VerifiedFiles, known: VerifiedFiles, batch: int) -> bool:
    """Whether the files of a table that are new have the rows up to `batch` of those that are gone, and no others."""
    folder = tables.table(name).path
    new = [path for path, file in files.items() if known.get(path) != file]
    gone = [path for path, file in known.items() if files.get(path) != file]
    if not all(is_there(folder / path, known[path]) for path in gone):
        return False
    try:
        before = files_digest(folder, gone, batch)
    except READ_ERRORS:
        # A clean-up may delete replaced files meanwhile.
        return False
    return files_digest(folder, new, batch) == before


def files_digest(folder: Path, paths: Sequence[str], batch: int) -> tuple[int, int]:
    """Return the number of rows of batches up to `batch` in these files, and the sum of their hashes modulo 2^64."""
    if not paths:
        return 0, 0
    with memory_database(MEMORY) as database:
        rows = files_sql(database, folder, paths)
        found = {name for (name, *_) in database.execute(f"describe select * from {rows}").fetchall()}
        # Of a table that Spark commits some files have the partition too, which is in their paths.
        partitions = {part.partition("=")[0] for path in paths for part in path.split("/") if "=" in part}
        columns = sorted(found - partitions)
        return row_digest(database, f"{rows} where _batch_id <= {batch}", columns)
