"""Rows of a table read with another table's wider types, so that their values can be compared."""

from __future__ import annotations

from typing import Any

from include.declare.contract_types import COLUMN_TYPES

LESS_EXACT = "FLOAT"
"""The type whose values have fewer digits than a record may have: a wider column is compared by these."""


def widened_columns(old: Any, new: Any) -> list[str]:
    """Return the columns of a pyarrow Dataset that another one has in a type which holds each of their values."""
    return [
        field.name
        for field in new.schema
        if field.name in old.schema.names and _is_wider(old.schema.field(field.name).type, field.type)
    ]


def widened_rows(old: Any, new: Any) -> Any:
    """Return a Dataset of files, without a filter, with another one's types in the columns that this has wider."""
    import pyarrow as pa
    import pyarrow.dataset as pd

    names = widened_columns(old, new)
    if not names or not isinstance(old, pd.FileSystemDataset):
        return old
    fields = [new.schema.field(field.name) if field.name in names else field for field in old.schema]
    return pd.FileSystemDataset(list(old.get_fragments()), pa.schema(fields), old.format, old.filesystem)


def type_word(duckdb_type: str) -> str:
    """Return the word of contracts for a type of DuckDB: `int` for INTEGER."""
    words = [kind.physical[0] for kind in COLUMN_TYPES.values() if kind.duckdb == duckdb_type]
    return words[0] if words else duckdb_type.lower()


def _is_wider(old: Any, new: Any) -> bool:
    import pyarrow.types as types

    if types.is_signed_integer(old) and types.is_signed_integer(new):
        return bool(new.bit_width > old.bit_width)
    if types.is_decimal(old) and types.is_decimal(new):
        return bool(new.scale == old.scale and new.precision > old.precision)
    return bool(types.is_float32(old) and types.is_float64(new))
