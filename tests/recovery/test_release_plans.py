"""A changed folder released while a stream runs: built, compared, published atomically, rolled back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from polling_reader import PollingReader
from recovery_site import Site, wait_until
from shipped_release import NEEDED, REFUSED, only_plan, ship_doubled_litres

from include.change import stages as plan_stages
from include.ground.paths import active_releases_path
from include.plans.journal import load_plan
from include.plans.plan import PlanRecord
from include.state.owner_requests import OwnerRequest, RequestKind, pending_request, submit_request

READS = 300


def move(site: Site, act: Callable[..., PlanRecord], plan: str) -> None:
    act(site.settings, load_plan(site.settings, plan), "test")


def read_while_publications_move(site: Site, plan: str, sums: tuple[int, int]) -> None:
    """Read repeatedly while the plan is rolled back and applied in turn."""
    poll = PollingReader(site, *((litres, litres) for litres in sums))
    with poll.polling():
        while len(poll.reads) < READS and poll.is_alive:
            move(site, plan_stages.roll_back, plan)
            move(site, plan_stages.apply, plan)
    poll.assert_no_mixes()


@pytest.mark.timeout(900)
@pytest.mark.extended
def test_release_is_built_promoted_and_rolled_back_while_streaming(site: Site) -> None:
    driver = site.start_driver()
    site.send(400)
    site.wait_published(driver)
    before = site.publication()
    litres = sum(item.reading["litres"] for item in site.sent if item.fate == "silver")

    ship_doubled_litres(site)
    killed = site.command(
        *("release", "run", "--dataset", site.dataset, "--yes"), HEADRACE_FAILPOINT="kill:4.silver-committed"
    )
    assert killed.returncode == REFUSED, killed.stdout
    plan = only_plan(site)
    assert (plan["stage"], plan["base"]) == ("planned", before["release"])
    second = site.command("release", "plan", "--dataset", site.dataset)
    assert (second.returncode, plan["id"] in second.stderr) == (REFUSED, True)

    refused = site.command("plan", "apply", plan["id"])
    assert (refused.returncode, "needs approval" in refused.stdout) == (NEEDED, True), refused.stderr
    shown = json.loads(site.command("plan", "show", plan["id"], "--json").stdout)["comparison"]
    differing = {table["name"]: table["changed"] for table in shown["tables"]}
    # A reading of no litres is the same twice.
    doubled = sum(item.reading["litres"] > 0 for item in site.sent if item.fate == "silver")
    assert differing[f"silver.{site.dataset}"] == doubled
    assert differing[f"rejected.{site.dataset}"] == 0
    assert site.publication() == before

    # The driver dies with a pending request: the next one executes it.
    assert site.command("plan", "approve", plan["id"]).returncode == 0
    driver.send(signal.SIGSTOP)
    submit_request(site.settings, site.dataset, OwnerRequest(plan["id"], RequestKind.PROMOTE, plan["release"]))
    driver.send(signal.SIGKILL)
    driver.wait()
    driver = site.start_driver()
    wait_until(lambda: pending_request(site.settings, site.dataset) is None, "the request is executed", driver)
    assert site.publication()["release"] == plan["release"]
    assert site.command("plan", "apply", plan["id"]).returncode == 0

    read_while_publications_move(site, plan["id"], (litres, 2 * litres))

    # Both releases stay current, and without a stream the request job rolls back.
    site.send(200)
    site.wait_published(driver)
    driver.send(signal.SIGTERM)
    assert driver.wait() == 0
    back = site.command("plan", "rollback", plan["id"])
    assert back.returncode == 0, back.stderr
    assert site.publication()["release"] == before["release"]
    site.assert_nothing_lost()
    driver = site.start_driver()
    site.send(200)
    site.wait_published(driver)
    assert site.command("plan", "retire", plan["id"]).returncode == 0
    assert json.loads(active_releases_path(site.settings, site.dataset).read_text()) == [before["release"]]
    site.assert_nothing_lost()
    site.assert_ledger_right()
