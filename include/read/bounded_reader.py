"""Reads the rows of a table once, from the first to the last, in memory that does not depend on their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

BATCH = 20_000
"""Rows that are read at once."""


def bounded_reader(rows: Any, columns: Sequence[str]) -> Any:
    """Return a reader of some columns of a pyarrow Dataset that holds a few batches at a time.

    A Dataset itself is read ahead of a slower consumer, by up to a gigabyte.
    """
    import pyarrow.dataset as pd

    scanner = rows.scanner(
        columns=list(columns),
        batch_size=BATCH,
        batch_readahead=1,
        fragment_readahead=1,
        fragment_scan_options=pd.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True),
        use_threads=False,
    )
    return scanner.to_reader()
