"""A derived dataset over the silver and gold of a recovery site, and the rows that the sent readings must give."""

from __future__ import annotations

import json

import duckdb
import polars as pl
from deltalake import DeltaTable
from recovery_site import Driver, Site, wait_until

from include.ground.paths import warehouse
from include.observe.progress import sources_behind

QUERY = """
with counted as (
    select cast(date_trunc('day', read_at) as date) as day, device, count(*) as readings, sum(litres) as litres
    from readings group by 1, 2
),
highest as (select day, device, count(*) as peaks, max(litres) as peak from peaks group by day, device)
select day, device, readings, litres, coalesce(peaks, 0) as peaks, peak
from counted left join highest using (day, device)
"""
EXPECTED = """
select cast(date_trunc('day', read_at) as date) as day, device, count(*) as readings,
       cast(sum(litres) as bigint) as litres,
       least(3, count(*) filter (litres > 50)) as peaks, max(litres) filter (litres > 50) as peak
from sent group by all
"""


def declared_over(source: Site, name: str) -> Site:
    """Declare readings and peaks by day and device, over silver and gold of the source; return its site."""
    meter, folder = source.dataset, source.settings.datasets / name
    day = "cast(date_trunc('day', read_at) as date)"
    touched = {"readings": {"day": day, "device": "device"}, "peaks": {"day": "day", "device": "device"}}
    gold = {"query": "gold/days.sql", "grain": ["day", "device"], "touched_by": touched}
    sources = {"readings": f"silver.{meter}", "peaks": f"gold.{meter}_peaks"}
    (folder / "gold").mkdir(parents=True)
    (folder / "derived.yaml").write_text(json.dumps({"sources": sources, "gold": {name: gold}}))
    (folder / "gold" / "days.sql").write_text(QUERY)
    return Site(source.settings, name)


def rows(site: Site) -> list[tuple[object, ...]]:
    """Return the published rows of the derived table."""
    ((_, table),) = site.publication()["tables"].items()
    delta = DeltaTable(str(warehouse(site.settings) / table["path"]), version=table["version"])
    frame = pl.DataFrame(pl.from_arrow(delta.to_pyarrow_table()))
    return sorted(frame.select("day", "device", "readings", "litres", "peaks", "peak").rows())


def expected_rows(source: Site) -> list[tuple[object, ...]]:
    """Return the rows that the sent readings must give, without the project's code."""
    sent = pl.DataFrame([item.reading for item in source.sent if item.fate == "silver"])
    database = duckdb.connect()
    database.execute("set timezone = 'UTC'")
    database.register("sent", sent.to_arrow())
    return sorted(database.sql(EXPECTED).fetchall())


def wait_followed(derived: Site, driver: Driver) -> None:
    """Wait until every published batch of the sources is used."""
    wait_until(lambda: not sources_behind(derived.settings, derived.dataset), "the sources are used", driver)
