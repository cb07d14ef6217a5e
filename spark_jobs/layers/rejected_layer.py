"""Rejected: the rows of records that are not in silver, and their counts by reason and disposition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from include.declare.dataset import Dataset
from include.ground.sql_quoting import sql_literal
from spark_jobs.layers.silver_tables import ARRIVAL_MONTH_IN_SQL
from spark_jobs.tables.data_files import DataFile
from spark_jobs.tables.delta_table import Table


def rejected_rows_sql(dataset: Dataset) -> str:
    """Return SQL for the records that break the contract, and those whose identity an earlier record has."""
    identity = sql_literal(", ".join(dataset.pipeline.identity))
    reason = f"[{{'rule': 'duplicate', 'column': {identity}, 'detail': _winner}}]"
    invalid = _rows(dataset, "invalid", "invalid", "_reasons")
    return f"{invalid} union all {_rows(dataset, 'duplicates', 'duplicate', reason)}"


def _rows(dataset: Dataset, view: str, disposition: str, reasons: str) -> str:
    version, month = sql_literal(dataset.contract.version), ARRIVAL_MONTH_IN_SQL.format(time="_timestamp")
    return ROWS.format(view=view, disposition=disposition, reasons=reasons, version=version, month=month)


ROWS = """
select
    _topic, _partition, _offset, _batch_id,
    '{disposition}' as disposition,
    {reasons} as reasons,
    {version} as contract_version,
    _timestamp as first_seen,
    {month} as _month
from {view}
"""


COUNTED = ["disposition", "reasons"]


def rejected_counts(rows: Iterable[pa.Table]) -> tuple[dict[str, int], dict[str, int]]:
    """Return rejected rows by reason (each reason once a record) and by disposition; `rows` have COUNTED, or more."""
    reasons: Counter[str] = Counter()
    dispositions: Counter[str] = Counter()
    for each in rows:
        dispositions += _counted(each["disposition"])
        reasons += _counted_reasons(each["reasons"].combine_chunks())
    return dict(reasons), dict(dispositions)


def rejected_counts_of_files(table: Table, files: Sequence[DataFile]) -> tuple[dict[str, int], dict[str, int]]:
    """Return `rejected_counts` of files that were just written."""
    return rejected_counts(pq.ParquetFile(table.spec.path / file.path).read(columns=COUNTED) for file in files)


def _counted_reasons(reasons: Any) -> Counter[str]:
    rules = pc.struct_field(pc.list_flatten(reasons), "rule")
    pairs = pa.table({"record": pc.list_parent_indices(reasons), "rule": rules})
    return _counted(pairs.group_by(["record", "rule"]).aggregate([])["rule"])


def _counted(values: Any) -> Counter[str]:
    return Counter({item["values"]: item["counts"] for item in pc.value_counts(values).to_pylist()})
