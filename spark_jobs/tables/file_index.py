"""A table's current files in memory, ordered by their last batch: a run finds its files without reading all."""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from itertools import islice

from spark_jobs.tables.data_files import DataFile

BATCH = "_batch_id"


class FileIndex:
    """Files by path; `rows` is the number of their rows."""

    def __init__(self, files: Iterable[DataFile]) -> None:
        self._files = {file.path: file for file in files}
        self._order = sorted(map(_key, self._files.values()))
        self.rows = sum(file.rows for file in self._files.values())

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[DataFile]:
        return iter(self._files.values())

    def add(self, file: DataFile) -> None:
        """Add a file, or replace the one of the same path."""
        self.remove(file.path)
        self._files[file.path] = file
        self.rows += file.rows
        insort(self._order, _key(file))

    def remove(self, path: str) -> None:
        """Remove a file, if the table has it."""
        file = self._files.pop(path, None)
        if file is not None:
            self.rows -= file.rows
            del self._order[bisect_left(self._order, _key(file))]

    def of_batches(self, first: int, last: int) -> list[DataFile]:
        """Return the files that may have rows of batches [first, last]; skips those that end before them."""
        start = bisect_left(self._order, (first, ""))
        files = (self._files[path] for _, path in islice(self._order, start, None))
        return [file for file in files if file.overlaps(BATCH, first, last)]


def _key(file: DataFile) -> tuple[int, str]:
    """Return the file's last batch and path; a file without bounds sorts last, since it may have any batch."""
    known = BATCH in file.low and BATCH in file.high
    return (int(str(file.high[BATCH])) if known else sys.maxsize, file.path)
