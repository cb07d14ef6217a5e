"""SIGKILL of the driver of a derived dataset, at random moments and at each step, while both of its sources change."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from recovery_site import Driver, Site, repeated_commits, wait_until

from include.paths import warehouse
from include.status.derived_progress import sources_behind
from spark_jobs.storage.failpoints import Step

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
STEPS = (Step.GOLD_WRITTEN, Step.GOLD_COMMITTED, Step.ALL_GOLD_COMMITTED, Step.PUBLISHED)


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


@pytest.mark.extended
@pytest.mark.timeout(1500)
def test_derived_driver_killed_at_any_moment_loses_and_doubles_nothing(site: Site) -> None:
    moments, derived = random.Random(7), declared_over(site, f"{site.dataset[:20]}_days")
    try:
        site.send(200)
        stream = site.start_driver()
        site.wait_published(stream)
        for _ in range(4):
            driver = derived.start_driver()
            for _ in range(moments.randrange(1, 5)):
                site.send(moments.randrange(50, 200))
                time.sleep(moments.uniform(0.2, 5.0))
            os.killpg(driver.process.pid, signal.SIGKILL)
            assert driver.wait() == -signal.SIGKILL
        for step in STEPS:
            site.wait_published(stream)
            driver = derived.start_driver()
            wait_followed(derived, driver)
            os.killpg(driver.process.pid, signal.SIGKILL)
            driver.wait()
            driver = derived.start_driver(f"kill:{step}:{derived.publication()['batch'] + 1}")
            site.send(100)
            assert driver.wait() == -signal.SIGKILL, step
            # What arrives before the restart is not part of the run that is repeated.
            site.send(100)
        site.wait_published(stream)
        driver = derived.start_driver()
        wait_followed(derived, driver)
        driver.send(signal.SIGTERM)
        assert driver.wait() == 0
        assert rows(derived) == expected_rows(site)
        assert (wrong := repeated_commits(warehouse(derived.settings) / derived.dataset)) == "", wrong
        audited = derived.command("audit", "--dataset", derived.dataset)
        assert (audited.returncode, "balanced" in audited.stdout) == (0, True), audited.stdout + audited.stderr
        site.assert_nothing_lost()
    finally:
        derived.kill_all()
