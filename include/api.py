"""Headrace from Python: read, query, subscribe, status, plans. For notebooks and programs; it changes nothing.

    from include import api
    api.read("gold.carrier_hours")                      # a lazy polars frame, pinned to one publication
    api.query("select count(*) from silver.flights")    # a polars frame
    for change in api.subscribe("gold.route_days", token): ...
    api.status().datasets; api.plans(); api.plan("release-flights-1").stage

Each function takes `settings`, by default those of the environment (`HEADRACE_…`). Errors are HeadraceError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from include.ground.settings import Settings, load_settings
from include.observe.progress import Progress, observe_progress
from include.plans.journal import load_plan, open_plans
from include.plans.plan import PlanRecord
from include.read.published_sql import run_query
from include.read.published_tables import PinnedTables, pinned
from include.read.subscription import PublishedChange
from include.read.subscription import subscribe as changes_of

if TYPE_CHECKING:
    import polars as pl

__all__ = ["PinnedTables", "PublishedChange", "pinned", "plan", "plans", "query", "read", "status", "subscribe"]


def read(table: str, *, columns: Sequence[str] | None = None, settings: Settings | None = None) -> pl.LazyFrame:
    """Return a published table as a lazy polars frame, pinned at its current version. Raises TableUnknown."""
    return pinned(settings).read(table, columns=columns)


def query(sql: str, *, settings: Settings | None = None) -> pl.DataFrame:
    """Return the rows of one SELECT (DuckDB) over the published tables. Raises as `headrace query`."""
    import polars as pl

    found = run_query(pinned(settings), sql)
    return pl.DataFrame(list(found.rows), schema=list(found.columns), orient="row", infer_schema_length=None)


def subscribe(table: str, token: str | None = None, *, settings: Settings | None = None) -> Iterator[PublishedChange]:
    """Yield the rows of a table that each publication changed, from `token` on. Raises TableUnknown, TokenUnusable."""
    return changes_of(table, token, settings=settings)


def status(*, settings: Settings | None = None) -> Progress:
    """Return the current state of every process, stream and dataset; what is unknown is None, with a note."""
    return observe_progress(settings or load_settings())


def plan(plan_id: str, *, settings: Settings | None = None) -> PlanRecord:
    """Return a plan with its stages. Raises PlanUnknown."""
    return load_plan(settings or load_settings(), plan_id)


def plans(*, settings: Settings | None = None) -> list[PlanRecord]:
    """Return the open plans."""
    return open_plans(settings or load_settings())
