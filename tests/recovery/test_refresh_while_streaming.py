"""Gold with a `refresh`, in a real driver that is killed: closed windows and sessions appear, an interval passes."""

from __future__ import annotations

import json
import os
import signal
import time
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from deltalake import DeltaTable
from recovery_site import Driver, Site, wait_until

from include.ground.paths import warehouse

pytestmark = pytest.mark.extended

GAP = timedelta(hours=1)
TABLES = """
  {0}_closed:
    kind: additive
    window: {{column: read_at, size: 1 hour, as: hour}}
    keys: [device]
    refresh: on_close
    measures: {{litres: {{sum: litres}}}}
  {0}_visits:
    kind: additive
    where: litres > 50
    session: {{column: read_at, gap: 1 hour, start: since, end: until}}
    keys: [device]
    refresh: on_close
    measures: {{litres: {{sum: litres}}}}
  {0}_minute:
    kind: additive
    window: {{column: read_at, size: 1 day, as: day}}
    refresh: every 1 minute
    measures: {{litres: {{sum: litres}}}}
"""


def declare_refreshed(site: Site) -> None:
    """Add gold tables that are refreshed on close and after an interval."""
    path = site.settings.datasets / site.dataset / "pipeline.yaml"
    path.write_text(path.read_text().rstrip("\n") + "\n" + TABLES.format(site.dataset))


def gold(site: Site, table: str, *columns: str) -> list[tuple[object, ...]]:
    """Return the published rows of a table."""
    pinned = site.publication()["tables"][f"gold.{site.dataset}_{table}"]
    delta = DeltaTable(str(warehouse(site.settings) / pinned["path"]), version=pinned["version"])
    return sorted(pl.DataFrame(pl.from_arrow(delta.to_pyarrow_table())).select(columns).rows())


def sent(site: Site) -> pl.DataFrame:
    return pl.DataFrame([item.reading for item in site.sent if item.fate == "silver"])


def expected_days(site: Site) -> list[tuple[object, ...]]:
    days = sent(site).group_by(pl.col("read_at").dt.truncate("1d").alias("day")).agg(pl.sum("litres"))
    return sorted((day.date(), litres) for day, litres in days.rows())


def watermark(site: Site) -> datetime:
    """Return up to when the published data is complete, as `headrace grains` says."""
    text = json.loads(site.command("grains", "--dataset", site.dataset, "--json").stdout)["watermark"]
    return datetime.fromisoformat(text).astimezone(UTC)


def expected_closed(site: Site, until: datetime) -> list[tuple[object, ...]]:
    """Return the hours that a watermark has passed."""
    hours = sent(site).group_by(pl.col("read_at").dt.truncate("1h").alias("hour"), "device").agg(pl.sum("litres"))
    return sorted(row for row in hours.rows() if row[0] + timedelta(hours=1) <= until)


def expected_visits(site: Site, until: datetime) -> list[tuple[object, ...]]:
    """Return the sessions that a watermark has passed: a row at the gap still joins them."""
    found: list[list[object]] = []
    for row in sent(site).filter(pl.col("litres") > 50).sort("device", "read_at").to_dicts():
        last = found[-1] if found else None
        if last and last[2] == row["device"] and row["read_at"] - last[1] <= GAP:  # type: ignore[operator]
            last[1], last[3] = row["read_at"], last[3] + row["litres"]  # type: ignore[operator]
        else:
            found.append([row["read_at"], row["read_at"], row["device"], row["litres"]])
    return sorted(tuple(each) for each in found if each[1] + GAP < until)  # type: ignore[operator]


def assert_closed_rows_are_right(site: Site) -> None:
    until = watermark(site)
    assert gold(site, "closed", "hour", "device", "litres") == expected_closed(site, until)
    assert gold(site, "visits", "since", "until", "device", "litres") == expected_visits(site, until)
    assert expected_visits(site, until)


def killed(driver: Driver) -> None:
    os.killpg(driver.process.pid, signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL


@pytest.mark.timeout(600)
def test_closed_and_interval_tables_follow_a_real_driver_through_kills(site: Site) -> None:
    declare_refreshed(site)
    site.send(900)
    driver = site.start_driver()
    site.wait_published(driver)
    assert_closed_rows_are_right(site)
    first = gold(site, "minute", "day", "litres")
    assert first == expected_days(site), "the first run refreshes"
    site.send(300)
    site.wait_published(driver)
    assert_closed_rows_are_right(site)
    began = time.monotonic()
    assert gold(site, "minute", "day", "litres") == first, "a minute has not passed"
    killed(driver)
    driver = site.start_driver()
    wait_until(
        lambda: gold(site, "minute", "day", "litres") == expected_days(site), "the minute has passed", driver, 100
    )
    assert time.monotonic() - began < 75, "without a new record, a minute after the first refresh"
    site.send(300)
    site.wait_published(driver)
    killed(driver)
    driver = site.start_driver()
    site.send(100)
    site.wait_published(driver)
    assert_closed_rows_are_right(site)
    wait_until(lambda: gold(site, "minute", "day", "litres") == expected_days(site), "refreshed", driver, 100)
    site.assert_nothing_lost()
