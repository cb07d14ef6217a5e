"""The two sides of a comparison: the published release and the built one, or a slice before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import getpid
from typing import Any
from uuid import uuid4

from include.change.compare import Rows, Side, key_columns, parquet_rows
from include.declare.dataset import Dataset, released_dataset
from include.declare.windows import Closing
from include.ground.paths import patch_path
from include.ground.record_coordinates import POSITION
from include.ground.settings import Settings
from include.ground.sql_quoting import sql_identifier, sql_literal
from include.plans.plan import Plan
from include.read.memory_database import memory_database, spill_folder
from include.read.publication import Publication, read_publication, tables_of
from include.read.published_tables import layer_order, open_dataset, stored_refresh_state


def release_sides(settings: Settings, published: Publication, built: Publication) -> tuple[Side, Side]:
    """Return the published and the built side at one batch; `on_close` tables have the rows that both closed."""

    def side(publication: Publication) -> Side:
        tables = {name: open_dataset(table) for name, table in tables_of(settings, publication).items()}
        return Side(released_dataset(settings, publication.dataset, publication.release), tables)

    sides = side(published), side(built)
    closed = [_closed(settings, s.dataset, p) for s, p in zip(sides, (published, built), strict=True)]
    return _closed_on_both(sides[0], closed), _closed_on_both(sides[1], closed)


def _closed(settings: Settings, dataset: Dataset, publication: Publication) -> dict[str, Closing]:
    """Return which rows are closed, for each table that has no others."""
    tables, found = tables_of(settings, publication), {}
    for gold in dataset.pipeline.gold:
        table, timed = tables.get(f"gold.{gold.name}"), gold.timed_by
        if gold.closes and table is not None and timed is not None:
            refreshed = stored_refresh_state(table.path, table.version)
            found[table.name] = timed.closing(refreshed.watermark)
    return found


def _closed_on_both(side: Side, closed: Sequence[Mapping[str, Closing]]) -> Side:
    """Return a side without the rows that are open on a side that waits for them to close."""
    conditions = dict(side.conditions)
    for name, bound in ((name, bound) for each in closed for name, bound in each.items() if name in side.tables):
        if bound.column in side.tables[name].schema.names:
            also = closed_rows(bound)
            conditions[name] = conditions[name] & also if name in conditions else also
    return replace(side, conditions=conditions)


def closed_rows(closed: Closing) -> Any:
    """Return Arrow's condition of the rows that are closed."""
    import pyarrow.compute as pc

    return pc.scalar(False) if closed.bound is None else pc.field(closed.column) < closed.bound


def slice_sides(settings: Settings, plan: Plan, dataset: Dataset) -> tuple[Side, Side]:
    """Return the rows of a slice of a dataset's release before and after its recomputation."""
    folder = patch_path(settings, plan.dataset, plan.release, plan.id)
    names = sorted((path.name for path in (folder / "after").iterdir()), key=layer_order)

    def side(state: str) -> Side:
        return Side(dataset, {name: parquet_rows(folder / state / name) for name in names})

    return side("before"), side("after")


def table_with_slice(
    settings: Settings, sides: tuple[Side, Side], name: str, columns: Iterable[str]
) -> tuple[Rows, Rows]:
    """Return a published table, and these columns of it with the rows of a slice replaced.

    `sides`: the slice before and after.
    """
    before, after = sides
    dataset = before.dataset
    published = open_dataset(tables_of(settings, read_publication(settings, dataset.name))[name])
    keys = POSITION if name.partition(".")[0] in ("silver", "rejected") else key_columns(dataset, name)
    selected = [each for each in published.schema.names if each in set(columns)] or published.schema.names[:1]
    return published, _replaced(published, before.tables[name], after.tables[name], keys, selected)


def _replaced(published: Rows, before: Rows, after: Rows, keys: Sequence[str], columns: Sequence[str]) -> Rows:
    import pyarrow.dataset as pd

    database = memory_database()
    for view, rows in (("published", published), ("before", before), ("after", after)):
        database.register(view, rows)
    same = " and ".join(
        f"published.{sql_identifier(key)} is not distinct from before.{sql_identifier(key)}" for key in keys
    )
    names = ", ".join(map(sql_identifier, columns))
    unchanged = f"select {names} from published anti join before on {same}"
    try:
        folder = spill_folder(getpid()) / uuid4().hex
        folder.mkdir(parents=True)
        result = f"{unchanged} union all select {names} from after"
        database.execute(f"copy ({result}) to {sql_literal(str(folder / 'rows.parquet'))} (format parquet)")
        return pd.dataset(folder)
    finally:
        database.close()
