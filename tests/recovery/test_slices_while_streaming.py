"""Backfill and replay while a stream runs: verified, refused, filled from Kafka and bronze, killed, rolled back."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from typing import Any

import pytest
from polling_reader import PollingReader
from recovery_site import Driver, Site, wait_until

from include.ground.delta_log import open_delta
from include.ground.kafka import delete_records_before, log_start_offsets
from include.ground.paths import verified_path, warehouse
from include.read.publication import read_publication, tables_of

pytestmark = pytest.mark.extended

REFUSED = 2
# A day of readings is 205 of them; they begin with the 27th of February 2024.
DAY = ("--from", "2024-02-27T12:00Z", "--to", "2024-02-28T12:00Z")


def run(site: Site, *words: str, **more: str) -> dict[str, Any]:
    """Run a command that prints JSON and must succeed."""
    ended = site.command(*words, "--json", **more)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert isinstance(found, dict)
    return found


def delete_rows(site: Site, table: str, where: str) -> None:
    """Delete rows of a table by hand."""
    tables_before = tables_of(site.settings, read_publication(site.settings, site.dataset))
    open_delta(tables_before[table].path).delete(where)


def expire_records(site: Site, partition: int, before: int) -> None:
    """Delete Kafka's records below an offset, as its retention does."""
    delete_records_before(site.bootstrap, site.dataset, {partition: before})
    wait_until(
        lambda: log_start_offsets(site.bootstrap, site.dataset)[partition] == before, "Kafka has expired the records"
    )


def published_again(site: Site, driver: Driver | None = None) -> Driver:
    """Let a driver publish another batch, so that readers see the tables' current state."""
    driver = driver or site.start_driver()
    site.send(200)
    site.wait_published(driver)
    return driver


def stopped(driver: Driver) -> None:
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0


def offsets(ranges: dict[int, Sequence[int]]) -> str:
    return json.dumps({str(partition): list(span) for partition, span in ranges.items()})


def apply_despite_kills(site: Site, driver: Driver, plan: str) -> Driver:
    """Kill job and driver during the build, and the driver during the patch; return a running driver.

    Readers see the state with lost rows, then all rows that were sent: never a mix of both.
    """
    died = site.command("plan", "apply", plan, "--yes", HEADRACE_FAILPOINT="kill:slice.records-rebuilt")
    assert died.returncode == REFUSED, died.stdout
    driver.send(signal.SIGKILL)
    driver.wait()
    driver = site.start_driver("kill:patch.silver-committed")
    site.wait_state("running", driver)
    cut = site.command("plan", "apply", plan, "--yes")
    assert (cut.returncode, driver.wait()) == (REFUSED, -signal.SIGKILL), cut.stdout
    litres = sum(item.reading["litres"] for item in site.sent if item.fate == "silver")
    poll = PollingReader(site)
    poll.states = (poll.read(), (litres, litres))
    assert poll.states[0][0] < litres
    with poll.polling():
        driver = site.start_driver()
        done = site.command("plan", "apply", plan, "--yes")
    assert done.returncode == 0, done.stderr
    poll.assert_no_mixes()
    assert site.command("plan", "apply", plan, "--yes").returncode == REFUSED
    back = site.command("plan", "rollback", plan)
    assert (back.returncode, "gap" in back.stderr) == (REFUSED, True)
    published_again(site, driver)
    audited = site.command("audit", "--dataset", site.dataset)
    assert audited.returncode == 0, audited.stdout
    site.assert_nothing_lost()
    return driver


@pytest.mark.timeout(900)
def test_slices_are_patched_and_reverted_while_streaming(site: Site) -> None:
    driver = published_again(site)
    published_again(site, driver)
    before, name = site.publication(), ("--dataset", site.dataset)

    # Nothing has changed: a day is verified, and no table is touched.
    day = run(site, "backfill", "run", *name, *DAY)
    assert (day["stage"], day["events"][-1]["result"]["changed"]) == ("applied", 0)
    release = before["release"]
    assert (
        json.loads(verified_path(site.settings, site.dataset, release, day["id"]).read_text())["batch"]
        == before["batch"]
    )
    assert site.publication() == before
    grains = json.loads(site.command("grains", *name, "--table", f"{site.dataset}_peaks", "--json").stdout)
    # The day from noon to noon holds no whole day: only the hours are verified.
    assert {window["state"] for window in grains["windows"]} == {"open"}
    hours = json.loads(site.command("grains", *name, "--state", "verified", "--json").stdout)["windows"]
    assert {window["table"] for window in hours} == {f"{site.dataset}_hours"}
    assert (len(hours), hours[0]["start"][:16]) == (24, "2024-02-27T12:00")

    # Rows of silver and bronze are lost; the audit sees it as soon as readers do.
    stopped(driver)
    delete_rows(site, f"bronze.{site.dataset}", "partition = 0 and offset >= 60 and offset < 90")
    delete_rows(site, f"silver.{site.dataset}", "_partition = 0 and _offset >= 50 and _offset < 70")
    driver = published_again(site)
    assert site.command("audit", *name).returncode == 1

    # Half of it is no longer in Kafka, and that half is in bronze: across the seam, or not at all.
    expire_records(site, 0, 58)
    refused = site.command("replay", "plan", *name, "--offsets", offsets({0: (40, 100)}), "--source", "kafka")
    assert (refused.returncode, "offsets 40 to 57" in refused.stderr) == (REFUSED, True), refused.stderr
    refused = site.command("backfill", "plan", *name, *DAY)
    assert (refused.returncode, "offsets 60 to 89" in refused.stderr) == (REFUSED, True), refused.stderr

    plan = run(site, "replay", "plan", *name, "--offsets", offsets({0: (40, 100), 1: (0, 20)}))
    spans = [(s["partition"], s["start"], s["end"], s["source"]) for s in plan["slice"]["spans"]]
    assert spans == [(0, 40, 58, "bronze"), (0, 58, 100, "kafka"), (1, 0, 20, "kafka")]
    second = site.command("replay", "plan", *name, "--offsets", offsets({0: (99, 120)}))
    assert (second.returncode, plan["id"] in second.stderr) == (REFUSED, True)
    apart = run(site, "replay", "plan", *name, "--offsets", offsets({0: (100, 120)}))
    assert site.command("plan", "cancel", apart["id"]).returncode == 0

    driver = apply_despite_kills(site, driver, plan["id"])

    # What is nowhere fails the plan and is named.
    stopped(driver)
    delete_rows(site, f"bronze.{site.dataset}", "partition = 0 and offset >= 30 and offset < 35")
    driver = published_again(site)
    nowhere = site.command("replay", "plan", *name, "--batches", "0..0")
    assert (nowhere.returncode, "partition 0 offsets 30 to 34" in nowhere.stderr) == (REFUSED, True), nowhere.stderr
    stopped(driver)


@pytest.mark.timeout(600)
def test_patch_without_a_stream_is_rolled_back(site: Site) -> None:
    driver = published_again(site)
    stopped(driver)
    name = ("--dataset", site.dataset)
    delete_rows(site, f"gold.{site.dataset}_hours", "device = 'd3'")
    driver = published_again(site)
    stopped(driver)
    wrong = site.publication()
    assert site.command("audit", *name).returncode == 1
    everything = ("backfill", "run", *name, "--from", "2024-02-27", "--to", "2024-03-01")
    unconfirmed = site.command(*everything)
    assert (unconfirmed.returncode, "--whole-history" in unconfirmed.stdout) == (1, True), unconfirmed.stdout
    unapproved = site.command(*everything, "--whole-history")
    assert (unapproved.returncode, "needs approval" in unapproved.stdout) == (1, True), unapproved.stdout
    plans = json.loads(site.command("plan", "list", "--json").stdout)
    (plan,) = [p for p in plans if p["dataset"] == site.dataset and p["stage"] != "cancelled"]
    applied = site.command("plan", "apply", plan["id"], "--yes")
    assert applied.returncode == 0, applied.stderr
    site.assert_nothing_lost()
    assert site.publication()["batch"] == wrong["batch"]
    back = site.command("plan", "rollback", plan["id"])
    assert back.returncode == 0, back.stderr
    # Gold is computed from silver: what was wrong in gold alone does not come back.
    site.assert_nothing_lost()
    assert not list((warehouse(site.settings) / site.dataset).glob("*/patch_in_progress.json"))
    site.assert_ledger_right()
