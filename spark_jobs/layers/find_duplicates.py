"""Each identity once: which of several records is the event, and which are its duplicates (adr-0001)."""

from __future__ import annotations

from include.catalog.dataset import Dataset
from include.record_coordinates import COORDINATES, RANK
from spark_jobs.layers.identity_lookup import identity_columns
from spark_jobs.storage.duckdb_session import DuckSession


def find_duplicates(duck: DuckSession, dataset: Dataset, fresh: str, known: str) -> None:
    """Make table `duplicates`: coordinates of rows of `fresh` whose identity occurs earlier there or in `known`.

    Column `_winner` names the first one. Earlier means (ingest batch, partition, offset). A hash of the identity finds
    the few suspects; they alone are compared in full, so a collision costs time and nothing else.
    """
    identity = identity_columns(dataset)
    columns = {"identity": identity, "coordinates": ", ".join(COORDINATES), "rank": ", ".join(RANK)}
    duck.create_table("duplicates", COPIES.format(**columns, fresh=fresh, known=known))


ORIGINALS = "select * from accepted anti join duplicates using (_partition, _offset)"
"""SQL for the rows of a view `accepted` that are not duplicates."""
COPIES = """
with fresh as (select hash({identity}) as _mark, {identity}, {coordinates}, true as _fresh from {fresh}),
earlier as (select hash({identity}) as _mark, {identity}, {rank}, false as _fresh from {known}),
suspects as (
    select _mark from fresh group by _mark having count(*) > 1
    union
    select _mark from earlier semi join fresh using (_mark)
),
ranked as (
    select
        *,
        row_number() over same as _place,
        first(concat_ws('/', _batch_id, _partition, _offset)) over same as _winner
    from (select * from fresh union all by name select * from earlier) semi join suspects using (_mark)
    window same as (partition by {identity} order by {rank})
)
select * exclude (_mark, _fresh, _place) from ranked where _place > 1 and _fresh
"""
