"""A release from a batch on that adds a table and removes one: history before that batch stays as it was."""

from __future__ import annotations

import json

import pytest
from recovery_site import Site
from shipped_release import REFUSED, only_plan, ship_doubled_litres

from include.read.published_tables import pinned

pytestmark = pytest.mark.extended


def add_days_and_remove_peaks(site: Site) -> None:
    """Declare days instead of peaks."""
    path = site.settings.datasets / site.dataset / "pipeline.yaml"
    head, peaks, _ = path.read_text("utf-8").partition(f"  {site.dataset}_peaks:")
    assert peaks
    days = f"""\
  {site.dataset}_days:
    kind: additive
    window: {{column: read_at, size: 1 day, as: day}}
    keys: [device]
    partition: date_format(day, 'yyyy-MM')
    measures:
      litres: {{sum: litres}}
"""
    path.write_text(head + days, "utf-8")


def litres_by_batch(site: Site) -> dict[int, int]:
    """Litres in silver, before batch numbers of the releases can matter: by the batch that a record came in."""
    rows = pinned(site.settings).read(f"silver.{site.dataset}", columns=["litres", "_batch_id"]).collect()
    return dict(rows.group_by("_batch_id").sum().sort("_batch_id").rows())


@pytest.mark.timeout(900)
def test_release_from_a_batch_adds_and_removes_a_table(site: Site) -> None:
    driver = site.start_driver()
    for _ in range(3):
        site.send(100)
        site.wait_published(driver)
    before, point = litres_by_batch(site), site.publication()["batch"]
    ship_doubled_litres(site)
    add_days_and_remove_peaks(site)
    release = ("release", "run", "--dataset", site.dataset, "--yes")
    refused = site.command(*release, "--from-batch", str(point + 100))
    assert (refused.returncode, "is not published" in refused.stderr) == (REFUSED, True)

    killed = site.command(*release, "--from-batch", str(point), HEADRACE_FAILPOINT="kill:4.silver-committed")
    assert killed.returncode == REFUSED, killed.stdout
    plan = only_plan(site)["id"]
    assert site.command("plan", "apply", plan, "--yes").returncode == 0
    after = litres_by_batch(site)
    assert after == {batch: litres * (2 if batch >= point else 1) for batch, litres in before.items()}
    tables = {
        table["name"]: table
        for table in json.loads(site.command("plan", "show", plan, "--json").stdout)["comparison"]["tables"]
    }
    assert tables[f"gold.{site.dataset}_days"]["presence"] == "added"
    assert tables[f"gold.{site.dataset}_peaks"]["presence"] == "removed"
    reading = pinned(site.settings)
    assert f"gold.{site.dataset}_peaks" not in reading.tables
    days = reading.read(f"gold.{site.dataset}_days", columns=["litres"]).sum().collect().item()
    assert days == sum(after.values())
    balanced = site.command("audit", "--dataset", site.dataset)
    assert balanced.returncode == 0, balanced.stdout

    # New records follow the new rules, and a rollback publishes all former tables.
    site.send(100)
    site.wait_published(driver)
    assert site.command("plan", "rollback", plan).returncode == 0
    assert f"gold.{site.dataset}_peaks" in pinned(site.settings).tables
    site.assert_nothing_lost()
    nothing = site.command("release", "plan", "--dataset", site.dataset, "--from-batch", str(point))
    assert (nothing.returncode, "maintains as a shadow" in nothing.stderr) == (REFUSED, True)
