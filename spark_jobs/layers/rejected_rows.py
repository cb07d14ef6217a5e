"""Rows of `rejected`, month included, as SQL over views `invalid` (judged.py) and `copies` (identity.py)."""

from __future__ import annotations

from include.catalog.dataset import Dataset
from include.reading.published_sql import sql_literal
from spark_jobs.layers.silver_writer import MONTH_IN_SQL


def rejected_rows_sql(dataset: Dataset) -> str:
    """Return SQL for the records that break the contract, and those whose identity an earlier record has."""
    identity = sql_literal(", ".join(dataset.pipeline.identity))
    copied = f"[{{'rule': 'duplicate', 'column': {identity}, 'detail': _winner}}]"
    invalid = _rows(dataset, "invalid", "invalid", "_reasons")
    return f"{invalid} union all {_rows(dataset, 'copies', 'duplicate', copied)}"


def _rows(dataset: Dataset, view: str, disposition: str, reasons: str) -> str:
    version, month = sql_literal(dataset.contract.version), MONTH_IN_SQL.format(time="_timestamp")
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
