"""The HLL sketches of `approx_distinct` without Spark: the library of Spark, so the same estimates.

A sketch written by either is read by the other. It differs in its bytes, which depend on the order of merges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import pyarrow as pa
from datasketches import hll_sketch, hll_union, tgt_hll_type

LOG_REGISTERS = 12
"""As Spark's `hll_sketch_agg` without a second argument."""


def extended_sketch(old: bytes | None, values: Iterable[str | int]) -> tuple[bytes, int]:
    """Return a sketch of the values that `old` has and of `values`, and its estimate."""
    union = hll_union(LOG_REGISTERS)
    if old is not None:
        union.update(hll_sketch.deserialize(old))
    for value in values:
        union.update(value)
    sketch = union.get_result(tgt_hll_type.HLL_8)
    return sketch.serialize_updatable(), _estimate(sketch)


def with_sketches(rows: pa.Table, name: str, kept: str, new: str) -> pa.Table:
    """Return the rows with the new values of a distinct count added to its sketches."""
    columns = [rows[each].to_pylist() for each in (kept, new.strip('"'), name)]
    pairs = [
        (sketch, estimate) if values is None else extended_sketch(sketch, values)
        for sketch, values, estimate in zip(*columns, strict=True)
    ]
    made = {
        kept: pa.array([each for each, _ in pairs], pa.binary()),
        name: pa.array([each for _, each in pairs], pa.int64()),
    }
    for column, values in made.items():
        rows = rows.set_column(rows.schema.get_field_index(column), column, values)
    return rows


def _estimate(sketch: hll_sketch) -> int:
    # The estimate of a union with itself does not depend on how the sketch was built (gold_measures.py).
    union = hll_union(LOG_REGISTERS)
    union.update(sketch)
    union.update(sketch)
    return math.floor(float(union.get_result(tgt_hll_type.HLL_8).get_estimate()) + 0.5)
