"""Files in a Delta table's folder: which ones its newest version has, and which ones no version needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from deltalake import DeltaTable


def add_actions(table: DeltaTable) -> Any:
    """Return an open table's add actions as an Arrow table: `path`, `num_records`, `size_bytes`, `min.<column>`, …"""
    import pyarrow as pa

    # pa.table would import pandas (two seconds) to check whether its argument is a pandas frame.
    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all()


def current_files(table: Path) -> dict[str, int]:
    """Return path below the table's folder → bytes of the newest version's files. Raises deltalake's DeltaError."""
    from deltalake import DeltaTable

    rows = add_actions(DeltaTable(str(table)))
    sizes = zip(rows["path"].to_pylist(), rows["size_bytes"].to_pylist(), strict=True)
    return {unquote(path): size for path, size in sizes}


def obsolete_files(
    table: Path | str,
    keep_versions: Iterable[int],
    retention: timedelta,
    *,
    sweep: bool = False,
    options: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the files, below the table's folder, that no version needs: neither `keep_versions`, nor the newest, nor
    one that was the newest within `retention` (whole hours). `sweep`: also uncommitted files that are older. `options`:
    of the store that an address names.
    """
    from deltalake import DeltaTable

    delta = DeltaTable(str(table), storage_options=dict(options) if options else None)
    found = delta.vacuum(
        retention_hours=int(retention / timedelta(hours=1)),
        dry_run=True,
        full=sweep,
        enforce_retention_duration=False,
        keep_versions=sorted({delta.version(), *keep_versions}),
    )
    return [unquote(path) for path in found]
