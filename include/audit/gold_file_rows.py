"""The files of a gold table at two versions, the published one and the one that was verified, and their rows.

Reads: the log of the published version, and data files of both; what a later version replaced is kept for a while
(`retention.versions`).  Writes: nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from include.audit.file_bounds import beginning, latest_of
from include.audit.verified_history import AuditScope, is_there
from include.ground.table_files import add_actions
from include.read.published_tables import PinnedTables, open_table


@dataclass(frozen=True)
class GoldFiles:
    """Paths below the table's folder: `kept` in both versions, `added` since, `removed` since.

    `actions` are those of the published version, by path; `schema` is that of the files.
    """

    folder: Path
    schema: pa.Schema
    actions: Mapping[str, Mapping[str, Any]]
    kept: frozenset[str]
    added: frozenset[str]
    removed: frozenset[str]

    @property
    def rows_published(self) -> int:
        """The rows of the published version, by its log."""
        return sum(action["num_records"] or 0 for action in self.actions.values())

    def rows(self, paths: frozenset[str]) -> Any:
        """Return the rows of these files as a pyarrow Dataset."""
        if not paths:
            return self.schema.empty_table()
        files = [str(self.folder / path) for path in sorted(paths)]
        return ds.dataset(files, self.schema, format="parquet", filesystem=fs.LocalFileSystem())

    def near(self, columns: tuple[str, str], spans: Sequence[tuple[Any, Any]]) -> frozenset[str]:
        """Return the kept files that may have rows of which the two columns lie in one of ascending `spans`."""
        low, high = columns
        if any(None in span for span in spans):
            return self.kept
        return frozenset(
            path
            for path in self.kept
            if _may_overlap(self.actions[path].get(f"min.{low}"), self.actions[path].get(f"max.{high}"), spans)
        )


def gold_files(tables: PinnedTables, scope: AuditScope, name: str) -> GoldFiles | None:
    """Return the files of a gold table as published and as verified; None when a replaced file is gone."""
    if scope.verified is None or scope.reached is None:
        return None
    table, before, now = tables.table(name), scope.verified.files.get(name, {}), scope.reached.files.get(name, {})
    kept = scope.unchanged(name)
    added, removed = frozenset(now) - kept, frozenset(before) - kept
    if removed & added or not all(is_there(table.path / path, before[path]) for path in removed):
        return None
    delta = open_table(table)
    partitions, declared = delta.metadata().partition_columns, pa.schema(delta.schema().to_arrow())
    schema = pa.schema([field for field in declared if field.name not in partitions])
    actions = {unquote(action["path"]): action for action in add_actions(delta).to_pylist()}
    return GoldFiles(table.path, schema, actions, kept, added, removed)


def _may_overlap(low: Any, high: Any, spans: Sequence[tuple[Any, Any]]) -> bool:
    if low is None or high is None:
        return True
    try:
        at = bisect_left(spans, beginning(low), key=lambda span: beginning(span[1]))
        return at < len(spans) and bool(beginning(spans[at][0]) <= latest_of(high))
    except TypeError:
        return True
