"""A data file's checksum, kept in its name: the log, its checkpoints and copies of the table all keep the name."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

# 64 bits of SHA-256: it finds damage, not forgery.
NAMED = re.compile(r"\.sha256-([0-9a-f]{16})\.parquet$")


def file_checksum(path: Path) -> str:
    """Return the first 16 hex digits of the SHA-256 of a file's bytes, read block by block."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def named_checksum(path: str) -> str | None:
    """Return the checksum in a file's name; None for a file of a version that wrote none."""
    found = NAMED.search(path)
    return None if found is None else found[1]


def name_by_checksum(path: Path) -> Path:
    """Rename a newly written Parquet file to carry its checksum; return its path. Named already: nothing happens."""
    if named_checksum(path.name):
        return path
    named = path.with_name(f"{path.stem}.sha256-{file_checksum(path)}.parquet")
    # Hadoop's own checksum of a file that Spark wrote, which Spark compares when it reads the file.
    hadoop = path.with_name(f".{path.name}.crc")
    if hadoop.exists():
        hadoop.rename(path.with_name(f".{named.name}.crc"))
    return path.rename(named)


def is_whole(path: Path) -> bool:
    """Return whether a Parquet file has the bytes of its checksum; without one, whether all of it can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if (expected := named_checksum(path.name)) is not None:
            return file_checksum(path) == expected
        with pq.ParquetFile(path) as file:
            return all(group is not None for group in map(file.read_row_group, range(file.num_row_groups)))
    except (pa.ArrowException, OSError):
        return False
