"""Places of records: Kafka's partition and offset in 64 bits, to compare many at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Words = NDArray[np.uint64]
OFFSET_BITS = 48
PARTITIONS = (1 << 64 - OFFSET_BITS) - 1
NOWHERE = np.uint64(2**64 - 1)
"""The place of a row whose partition or offset is null or beyond any of Kafka's: no record is there."""


def packed_places(partitions: NDArray[np.int64], offsets: NDArray[np.int64]) -> Words:
    """Return the places of partitions below PARTITIONS and offsets of at most OFFSET_BITS bits."""
    return (partitions.astype(np.uint64) << np.uint64(OFFSET_BITS)) | offsets.astype(np.uint64)


def unpacked_places(places: Words) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return partitions and offsets of places."""
    offsets = places & np.uint64((1 << OFFSET_BITS) - 1)
    return (places >> np.uint64(OFFSET_BITS)).astype(np.int64), offsets.astype(np.int64)


def places_in(batch: pa.RecordBatch, names: Sequence[str]) -> Words:
    """Return the places of rows; `names` are their columns of partition and offset."""
    partitions, offsets = (pc.fill_null(batch[name], -1).to_numpy() for name in names)
    is_somewhere = (partitions >= 0) & (partitions < PARTITIONS) & (offsets >= 0) & (offsets < 1 << OFFSET_BITS)
    return np.where(is_somewhere, packed_places(partitions, offsets), NOWHERE)


def are_in(values: Words, in_order: Words) -> NDArray[np.bool_]:
    """Return which of the values are among those `in_order`."""
    if not len(in_order):
        return np.zeros(len(values), bool)
    return np.asarray(in_order.take(np.searchsorted(in_order, values), mode="clip") == values)
