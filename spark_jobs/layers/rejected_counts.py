"""Rejected rows counted by reason and disposition, from the files that were just written: no job of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jobs.storage.data_files import DataFile
from spark_jobs.storage.delta_table import Table


def rejected_counts(table: Table, files: Sequence[DataFile]) -> tuple[dict[str, int], dict[str, int]]:
    """Return rejected rows by reason (each reason once a record) and by disposition, from the files just written."""
    reasons: Counter[str] = Counter()
    dispositions: Counter[str] = Counter()
    for file in files:
        rows = pq.read_table(table.spec.path / file.path, columns=["disposition", "reasons"], partitioning=None)
        dispositions += _counted(rows["disposition"])
        reasons += _counted_reasons(rows["reasons"].combine_chunks())
    return dict(reasons), dict(dispositions)


def _counted_reasons(reasons: Any) -> Counter[str]:
    rules = pc.struct_field(pc.list_flatten(reasons), "rule")
    pairs = pa.table({"record": pc.list_parent_indices(reasons), "rule": rules})
    return _counted(pairs.group_by(["record", "rule"]).aggregate([])["rule"])


def _counted(values: Any) -> Counter[str]:
    return Counter({item["values"]: item["counts"] for item in pc.value_counts(values).to_pylist()})
