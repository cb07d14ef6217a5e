"""Backfill of a derived dataset while its driver runs: not approved, killed, corrected, rolled back, verified."""

from __future__ import annotations

import json
import signal
from datetime import date
from typing import Any

import pytest
from deltalake import DeltaTable
from derived_days import declared_over, expected_rows, rows, wait_followed
from recovery_site import Driver, Site, repeated_commits

from include.ground.paths import warehouse

pytestmark = pytest.mark.extended

FAILED, REFUSED = 1, 2
FIRST_DAY = ("--from", "2024-02-27", "--to", "2024-02-28")


def stopped(driver: Driver) -> None:
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0


def plant_wrong_rows(derived: Site) -> None:
    """Change a row of the first day and delete another one, by hand."""
    ((_, table),) = derived.publication()["tables"].items()
    delta = DeltaTable(str(warehouse(derived.settings) / table["path"]))
    delta.update({"litres": "litres + 1000"}, predicate="day = '2024-02-27' and device = 'd1'")
    delta.delete("day = '2024-02-27' and device = 'd3'")


def shown(derived: Site, plan: str) -> dict[str, Any]:
    found = json.loads(derived.command("plan", "show", plan, "--json").stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.timeout(900)
def test_wrong_rows_are_found_corrected_despite_kills_and_put_back(site: Site) -> None:
    derived = declared_over(site, f"{site.dataset[:20]}_days")
    name, plan = ("--dataset", derived.dataset), f"derived-backfill-{derived.dataset}-1"
    try:
        site.send(600)
        stream = site.start_driver()
        site.wait_published(stream)
        driver = derived.start_driver()
        wait_followed(derived, driver)
        assert rows(derived) == expected_rows(site)
        stopped(driver)
        plant_wrong_rows(derived)
        driver = derived.start_driver()
        # A run over other days publishes the table as it is.
        site.send(100)
        site.wait_published(stream)
        wait_followed(derived, driver)
        wrong, right = rows(derived), expected_rows(site)
        assert {row[0] for row in {*wrong} ^ {*right}} == {date(2024, 2, 27)}

        done = derived.command("backfill", "run", *name, *FIRST_DAY)
        assert (done.returncode, "not approved" in done.stdout) == (FAILED, True), done.stdout + done.stderr
        assert shown(derived, plan)["stage"] == "compared"
        assert rows(derived) == wrong
        stopped(driver)
        driver = derived.start_driver("kill:patch.gold-committed")
        derived.wait_state("running", driver)
        cut = derived.command("plan", "apply", plan, "--yes")
        assert (cut.returncode, driver.wait()) == (REFUSED, -signal.SIGKILL), cut.stdout
        assert rows(derived) == wrong, "readers see no half of it"
        driver = derived.start_driver()
        done = derived.command("plan", "apply", plan, "--yes")
        assert done.returncode == 0, done.stderr
        assert rows(derived) == right
        audited = derived.command("audit", *name)
        assert (audited.returncode, "balanced" in audited.stdout) == (0, True), audited.stdout + audited.stderr

        back = derived.command("plan", "rollback", plan)
        assert back.returncode == 0, back.stderr
        assert rows(derived) == wrong
        assert derived.command("audit", *name).returncode == FAILED
        again = derived.command("backfill", "run", *name, *FIRST_DAY, "--yes", "--json")
        assert json.loads(again.stdout)["stage"] == "applied", again.stderr
        equal = derived.command("backfill", "run", *name, *FIRST_DAY, "--json")
        assert json.loads(equal.stdout)["events"][-1]["result"]["changed"] == 0, equal.stderr
        replayed = derived.command("replay", "run", *name, "--batches", "0..1")
        assert (replayed.returncode, "headrace backfill run" in replayed.stderr) == (REFUSED, True), replayed.stderr

        site.send(100)
        site.wait_published(stream)
        wait_followed(derived, driver)
        assert rows(derived) == expected_rows(site)
        assert (found := repeated_commits(warehouse(derived.settings) / derived.dataset)) == "", found
    finally:
        derived.kill_all()
