"""Rows by identity: their hashes in order, with event times and places, as the index has them (adr-0006).

Reads: rows in a view, or files of accepted records. Writes: nothing.
Guarantee: the same hashes as those of the index, within one version of DuckDB.
Nothing here depends on silver, so that a run's rows are identified while the run before is written (adr-0015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from include.declare.dataset import Dataset
from include.ground.record_coordinates import COORDINATES
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.duckdb_session import DuckSession, session_for
from spark_jobs.tables.identity_index import Identities, Words, are_in, packed_places

PLACE_SQL = "_partition::bigint as _place_partition, _offset as _place_offset"
"""A contract has no column whose name begins with an underscore."""
PLACED = ("_hash", "_time", "_place_partition", "_place_offset")


@dataclass(frozen=True)
class PlacedRows:
    """Rows with some columns, their places, and identities of some of them in the order of their hashes."""

    rows: pa.Table
    places: Words
    identities: Identities


@dataclass(frozen=True)
class IdentifiedRows(PlacedRows):
    """Rows with the identities of all of them; `row_at` says which row each of these is of."""

    row_at: NDArray[np.int64]

    def rows_of(self, chosen: NDArray[np.bool_]) -> pa.Table:
        """Return the rows of the chosen identities."""
        return self.rows.take(self.row_at[chosen])

    def indexed_without(self, places: Words) -> PlacedRows:
        """Return the rows with the identities of those that are not at these sorted places.

        The others stay: rows are found by the places of identities, and to filter texts takes longer than all the rest.
        """
        is_left = ~are_in(self.identities.places, places)
        return PlacedRows(self.rows, self.places, self.identities.taken(is_left))


def identity_columns(dataset: Dataset) -> str:
    """Return the columns of an identity as SQL has them."""
    return ", ".join(f'"{name}"' for name in dataset.pipeline.identity)


def columns_with_identity(dataset: Dataset, others: Sequence[str]) -> list[str]:
    """Return the columns of an identity and the others, each once."""
    return list(dict.fromkeys([*dataset.pipeline.identity, *others]))


def identify_files(dataset: Dataset, silver: Table, accepted: Sequence[Path], count: int) -> IdentifiedRows:
    """Return the rows of files, at most `count`, with silver's columns: identity and coordinates of them."""
    with session_for(count) as duck:
        duck.view_files("accepted", accepted, silver.spec.data_schema)
        return identify_rows(duck, dataset, "accepted", columns_with_identity(dataset, COORDINATES))


def identify_rows(duck: DuckSession, dataset: Dataset, view: str, columns: Sequence[str] = ()) -> IdentifiedRows:
    """Return the identities and some columns of the rows of a view; one without event time counts as of 1970."""
    time = f'coalesce(epoch_us("{dataset.pipeline.event_time}"), 0)::bigint as _time'
    names = [f"hash({identity_columns(dataset)}) as _hash", time, PLACE_SQL, *(f'"{column}"' for column in columns)]
    rows = duck.arrow(f"select {', '.join(names)} from {view}")
    hashes, times, partitions, offsets = (rows[name].to_numpy() for name in PLACED)
    order, places = np.argsort(hashes), packed_places(partitions, offsets)
    identities = Identities(hashes[order], times[order], places[order])
    return IdentifiedRows(rows.select(columns).combine_chunks(), places, identities, order)
