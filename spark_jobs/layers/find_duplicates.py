"""Each identity once: which of several records is the event, and which are its duplicates (adr-0001)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from include.catalog.dataset import Dataset
from include.catalog.event_times import after, before
from spark_jobs.layers.silver_writer import COORDINATES, SilverWriter
from spark_jobs.storage.data_files import Bounds, DataFile, bounds_of
from spark_jobs.storage.duckdb_session import DuckSession


def identity_columns(dataset: Dataset) -> str:
    """Return the columns of an identity as SQL has them."""
    return ", ".join(f'"{name}"' for name in dataset.pipeline.identity)


def candidate_files(writer: SilverWriter, written: Sequence[Path]) -> list[DataFile]:
    """Return silver's files that may hold an identity of the rows in `written`.

    A file is pruned by its bounds on the identity, and by event time: the horizon is the producer's promise
    how far apart duplicates of an event lie. Bounds are those of row groups, so that one old record does not
    open all of silver.
    """
    time, horizon = writer.dataset.pipeline.event_time, writer.dataset.pipeline.horizon
    identity = writer.dataset.pipeline.identity[0]
    spans = [bounds for path in written for bounds in bounds_of(path, (time, identity))]
    return [
        file
        for file in writer.silver.files()
        if any(_may_share(file, low, high, time, identity, horizon) for low, high in spans)
    ]


def _may_share(file: DataFile, low: Bounds, high: Bounds, time: str, identity: str, horizon: timedelta) -> bool:
    """Whether a silver file may have an identity of rows within these bounds."""
    if time not in low or identity not in low:
        return True
    first, last = low[time], high[time]
    assert isinstance(first, datetime)
    assert isinstance(last, datetime)
    near = file.overlaps(time, before(first, horizon), after(last, horizon))
    return near and file.overlaps(identity, low[identity], high[identity])


def find_duplicates(duck: DuckSession, dataset: Dataset, fresh: str, known: str) -> None:
    """Make table `duplicates`: coordinates of rows of `fresh` whose identity occurs earlier there or in `known`.

    Column `_winner` names the first one. Earlier means (ingest batch, partition, offset). A hash of the identity finds
    the few suspects; they alone are compared in full, so a collision costs time and nothing else.
    """
    identity = identity_columns(dataset)
    columns = f"hash({identity}) as _mark, {identity}, {', '.join(COORDINATES)}"
    duck.create_table("duplicates", COPIES.format(identity=identity, columns=columns, fresh=fresh, known=known))


ORIGINALS = "select * from accepted anti join duplicates using (_partition, _offset)"
"""SQL for the rows of a view `accepted` that are no duplicates."""
COPIES = """
with fresh as (select {columns}, true as _fresh from {fresh}),
earlier as (select {columns}, false as _fresh from {known}),
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
    from (select * from fresh union all select * from earlier) semi join suspects using (_mark)
    window same as (partition by {identity} order by _batch_id, _partition, _offset)
)
select * exclude (_mark, _fresh, _place) from ranked where _place > 1 and _fresh
"""
