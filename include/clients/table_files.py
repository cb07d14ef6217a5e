"""Files in a Delta table's folder: which ones its newest version has, and which ones no version needs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote


def current_files(table: Path) -> dict[str, int]:
    """Return path below the table's folder → bytes of the newest version's files. Raises deltalake's DeltaError."""
    import pyarrow as pa
    from deltalake import DeltaTable

    rows = pa.RecordBatchReader.from_stream(DeltaTable(str(table)).get_add_actions(flatten=True)).read_all()
    sizes = zip(rows["path"].to_pylist(), rows["size_bytes"].to_pylist(), strict=True)
    return {unquote(path): size for path, size in sizes}


def obsolete_files(
    table: Path, keep_versions: Iterable[int], retention: timedelta, *, sweep: bool = False
) -> list[str]:
    """Return the files, below the table's folder, that no version needs: neither `keep_versions`, nor the newest, nor
    one that was the newest within `retention` (whole hours). `sweep`: also uncommitted files that are older.
    """
    from deltalake import DeltaTable

    delta = DeltaTable(str(table))
    found = delta.vacuum(
        retention_hours=int(retention / timedelta(hours=1)),
        dry_run=True,
        full=sweep,
        enforce_retention_duration=False,
        keep_versions=sorted({delta.version(), *keep_versions}),
    )
    return [unquote(path) for path in found]
