"""The compact history of a Delta log: old commit files, byte for byte, in Parquet (spark_jobs/tables/adr-0003).

`_headrace_history/<first version>.parquet` in a table's folder has RANGE commits (`version`, `commit`);
`_delta_log/_headrace_history` has the number of versions that the history holds, from version 0 on. It is written after
the Parquet file and before a commit file is removed, so each version is read from one place. Delta readers see neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from include.ground.durable_files import write_atomically
from include.ground.errors import Terminal
from include.ground.stored_path import StoredPath

HISTORY = "_headrace_history"
RANGE = 200
"""Commits in each file, which a look-up of one commit reads."""


class HistoryDamaged(Terminal):
    """A file of a table's history is missing or damaged; `path` names it."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"history file {path} {why}; the log no longer has its commits, so reading stopped there. The rows of the"
            " table are not affected",
            "restore the file from a backup, then: headrace audit",
        )
        self.path = path


def history_end(table: Path) -> int:
    """Return the number of versions that the history holds, from version 0 on; 0 for none. Raises HistoryDamaged.

    In a store each commit stays an object.
    """
    if isinstance(table, StoredPath):
        return 0
    path = _end_file(table)
    try:
        end = int(path.read_bytes())
    except FileNotFoundError:
        # The owner may have crashed before it wrote the first one: the log is whole then.
        if (table / HISTORY).exists() and not (path.parent / f"{0:020d}.json").exists():
            raise HistoryDamaged(path, "is missing") from None
        return 0
    except ValueError as error:
        raise HistoryDamaged(path, f"has no number of versions ({error})") from error
    if end <= 0 or end % RANGE:
        raise HistoryDamaged(path, f"has {end} versions, not a multiple of {RANGE}")
    return end


def historic_commit(table: Path, version: int) -> bytes | None:
    """Return the content of a version's commit file, None when the history does not hold it. Raises HistoryDamaged.

    Reads one file of computed name, or none when the last call read the same.
    """
    return _commits_around(table, version)[version % RANGE] if 0 <= version < history_end(table) else None


def historic_commits(table: Path, first: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield version and commit file of versions [first, end), which the history must hold. Raises HistoryDamaged."""
    for start in range(first - first % RANGE, end, RANGE):
        yield from ((v, commit) for v, commit in enumerate(_commits_around(table, start), start) if first <= v < end)


def next_range(table: Path) -> range:
    """Return the versions that the next call of `write_range` writes."""
    end = history_end(table)
    return range(end, end + RANGE)


def write_range(table: Path, commits: Sequence[bytes]) -> None:
    """Write the next range durably and read it back; it counts from `extend_history` on. Raises HistoryDamaged.

    After a crash: call it again, it replaces the file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    versions, sink = next_range(table), pa.BufferOutputStream()
    rows = pa.Table.from_pydict({"version": list(versions), "commit": pa.array(commits, pa.binary())})
    pq.write_table(
        rows,
        sink,
        row_group_size=RANGE,
        compression="zstd",
        compression_level=12,
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )
    path = _range_file(table, versions.start)
    write_atomically(path, sink.getvalue().to_pybytes())
    if [commit for _, commit in historic_commits(table, versions.start, versions.stop)] != list(commits):
        raise HistoryDamaged(path, "differs from the commits that were to be written; none was removed")


def extend_history(table: Path) -> None:
    """Make the range that was written last part of the history."""
    write_atomically(_end_file(table), str(next_range(table).stop))


def _end_file(table: Path) -> Path:
    return table / "_delta_log" / HISTORY


def _range_file(table: Path, version: int) -> Path:
    return table / HISTORY / f"{version - version % RANGE:020d}.parquet"


def _commits_around(table: Path, version: int) -> list[bytes]:
    """Return the commits of the file that has a version."""
    path = _range_file(table, version)
    try:
        written = path.stat()
    except FileNotFoundError as error:
        raise HistoryDamaged(path, "is missing") from error
    return _read_range(path, (written.st_ino, written.st_mtime_ns), version - version % RANGE)


# Two ranges: a merge of two tables' commits, for example, alternates between them.
@lru_cache(maxsize=2)
def _read_range(path: Path, _: tuple[int, int], first: int) -> list[bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            rows: dict[str, list[Any]] = file.read().to_pydict()
    except (pa.ArrowException, OSError, IndexError) as error:
        raise HistoryDamaged(path, f"cannot be read ({str(error).splitlines()[0]})") from error
    if rows.get("version") != list(range(first, first + RANGE)):
        raise HistoryDamaged(path, f"does not have each of the versions {first} to {first + RANGE - 1}")
    return rows["commit"]
