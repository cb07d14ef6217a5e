"""Each identity once: which of several records is the event, and which are its duplicates (adr-0001)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from include.declare.dataset import Dataset
from include.ground.record_coordinates import COORDINATES, RANK
from spark_jobs.layers.identified_rows import identity_columns
from spark_jobs.tables.duckdb_session import DuckSession
from spark_jobs.tables.identity_index import Words


def find_duplicates(duck: DuckSession, dataset: Dataset, fresh: str, known: str) -> None:
    """Make table `duplicates` as `rank_copies` does, of any number of rows.

    A hash of the identity finds the few suspects; they alone are compared in full, so a collision costs time and
    nothing else.
    """
    identity = identity_columns(dataset)
    duck.view_arrow("suspects", pa.table({"_mark": _suspects(duck, identity, fresh, known)}))
    for name, rows, columns in (("fresh", fresh, COORDINATES), ("known", known, RANK)):
        marked = f"select hash({identity}) as _mark, {identity}, {', '.join(columns)} from {rows}"
        duck.view_query(f"suspect_{name}", f"select * exclude (_mark) from ({marked}) semi join suspects using (_mark)")
    rank_copies(duck, dataset, "suspect_fresh", "suspect_known")


def rank_copies(duck: DuckSession, dataset: Dataset, fresh: str, known: str) -> None:
    """Make table `duplicates`: coordinates of rows of `fresh` whose identity occurs earlier there or in `known`.

    Column `_winner` names the first one. Earlier means (ingest batch, partition, offset). All rows are sorted, so they
    should be those that may share an identity.
    """
    identity, rank = identity_columns(dataset), ", ".join(RANK)
    columns = {"identity": identity, "coordinates": ", ".join(COORDINATES), "rank": rank}
    duck.create_table("duplicates", COPIES.format(**columns, fresh=fresh, known=known))


def _suspects(duck: DuckSession, identity: str, fresh: str, known: str) -> Words:
    """Return the hashes that several rows of `fresh` have, or one of them and one of `known`.

    Sorting them finds the former in a tenth of the time that a group by takes.
    """
    marks = np.sort(duck.arrays(MARKS.format(identity=identity, rows=fresh))["_mark"])
    duck.view_arrow("marks", pa.table({"_mark": marks}))
    earlier = duck.arrays(f"{MARKS.format(identity=identity, rows=known)} semi join marks using (_mark)")["_mark"]
    return np.union1d(marks[1:][marks[1:] == marks[:-1]], earlier)


ORIGINALS = "select * from accepted anti join duplicates using (_partition, _offset)"
"""SQL for the rows of a view `accepted` that are not duplicates."""
MARKS = "select _mark from (select hash({identity}) as _mark from {rows})"
COPIES = """
with compared as (
    select {identity}, {coordinates}, true as _fresh from {fresh}
    union all by name
    select {identity}, {rank}, false as _fresh from {known}
),
ranked as (
    select
        *,
        row_number() over same as _place,
        first(concat_ws('/', _batch_id, _partition, _offset)) over same as _winner
    from compared
    window same as (partition by {identity} order by {rank})
)
select * exclude (_fresh, _place) from ranked where _place > 1 and _fresh
"""
