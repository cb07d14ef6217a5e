"""Sets of files whose records a release has besides those of its topic (spark_jobs/layers/adr-0020)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import TypeAdapter

from include.ground.record_coordinates import offset_in_set

FILE_SETS = "loads.yaml"
"""The file of a snapshot that lists the sets; JSON is YAML too, and is read in a hundredth of the time."""


@dataclass(frozen=True)
class RecordFile:
    """A file as it was planned: its address, bytes, last change in nanoseconds since 1970, and SHA-256."""

    address: str
    size: int
    modified_ns: int
    sha256: str


@dataclass(frozen=True)
class FileSet:
    """The files that a plan loads, in order; all in one `form`. `partition` is that of their records.

    `literals`: columns of a text format that are numbers or truth values. `planned_at` is the time of each record.
    """

    plan: str
    partition: int
    form: str
    literals: Sequence[str]
    planned_at: datetime
    files: Sequence[RecordFile]

    @property
    def end(self) -> int:
        """The offset after the last file's."""
        return offset_in_set(len(self.files))


_SETS = TypeAdapter(tuple[FileSet, ...])


def read_file_sets(folder: Path) -> tuple[FileSet, ...]:
    """Return the sets of a release's snapshot, in the order in which they were loaded."""
    path = folder / FILE_SETS
    return _SETS.validate_json(path.read_bytes()) if path.exists() else ()


def write_file_sets(folder: Path, sets: Sequence[FileSet]) -> None:
    """Write the sets of a release into its snapshot."""
    if sets:
        (folder / FILE_SETS).write_bytes(_SETS.dump_json(tuple(sets), indent=1))


def repeated_files(files: Sequence[RecordFile], loaded: Sequence[FileSet]) -> Iterator[tuple[str, str]]:
    """Yield each file whose bytes come twice: its address, and where they are already. One without bytes never does."""
    known = {file.sha256: f"{file.address} of plan {each.plan}" for each in loaded for file in each.files}
    count = Counter[str]()
    for file in filter(lambda file: file.size, files):
        count[file.sha256] += 1
        if file.sha256 in known:
            yield file.address, known[file.sha256]
        elif count[file.sha256] > 1:
            yield file.address, next(each.address for each in files if each.sha256 == file.sha256)
