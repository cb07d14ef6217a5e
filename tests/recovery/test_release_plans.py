"""A changed folder shipped beside the running stream: built, compared, seen by readers in one move, and taken back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from polling import Poll
from releases import REFUSED, double_litres, the_plan
from site_of_recovery import Site, await_that

from include.paths import active_releases_path
from include.planning import plan_stages
from include.planning.plan import PlanRecord
from include.planning.plan_journal import load_plan
from include.state.owner_requests import OwnerRequest, RequestKind, pending_request, submit_request

READS = 1_000
NEEDED = 1


def moved(site: Site, act: Callable[..., PlanRecord], plan: str) -> None:
    act(site.settings, load_plan(site.settings, plan), "test")


def poll_while_it_moves(site: Site, plan: str, sums: tuple[int, int]) -> None:
    """Read again and again while the plan is rolled back and applied, back and forth."""
    poll = Poll(site, *((litres, litres) for litres in sums))
    with poll.going_on():
        while len(poll.reads) < READS and poll.is_alive:
            moved(site, plan_stages.roll_back, plan)
            moved(site, plan_stages.apply, plan)
    poll.refuse_mixes()


@pytest.mark.timeout(900)
def test_release_beside_the_stream(site: Site) -> None:
    driver = site.drive()
    site.send(400)
    site.await_published(driver)
    before = site.publication()
    litres = sum(item.reading["litres"] for item in site.sent if item.fate == "silver")

    double_litres(site)
    killed = site.command(
        *("release", "run", "--dataset", site.dataset, "--yes"), HEADRACE_FAILPOINT="kill:4.silver-committed"
    )
    assert killed.returncode == REFUSED, killed.stdout
    plan = the_plan(site)
    assert (plan["stage"], plan["base"]) == ("planned", before["release"])
    second = site.command("release", "plan", "--dataset", site.dataset)
    assert (second.returncode, plan["id"] in second.stderr) == (REFUSED, True)

    asked = site.command("plan", "apply", plan["id"])
    assert (asked.returncode, "needs approval" in asked.stdout) == (NEEDED, True), asked.stderr
    shown = json.loads(site.command("plan", "show", plan["id"], "--json").stdout)["comparison"]
    differing = {table["name"]: table["changed"] for table in shown["tables"]}
    # A reading of no litres is the same twice.
    doubled = sum(item.reading["litres"] > 0 for item in site.sent if item.fate == "silver")
    assert differing[f"silver.{site.dataset}"] == doubled
    assert differing[f"rejected.{site.dataset}"] == 0
    assert site.publication() == before

    # The stream dies with the order unanswered: the next one obeys.
    assert site.command("plan", "approve", plan["id"]).returncode == 0
    driver.send(signal.SIGSTOP)
    submit_request(site.settings, site.dataset, OwnerRequest(plan["id"], RequestKind.PROMOTE, plan["release"]))
    driver.send(signal.SIGKILL)
    driver.ended()
    driver = site.drive()
    await_that(lambda: pending_request(site.settings, site.dataset) is None, "the order is obeyed", driver)
    assert site.publication()["release"] == plan["release"]
    assert site.command("plan", "apply", plan["id"]).returncode == 0

    poll_while_it_moves(site, plan["id"], (litres, 2 * litres))

    # Both releases stay fresh, and without a stream the plan's own job takes them back.
    site.send(200)
    site.await_published(driver)
    driver.send(signal.SIGTERM)
    assert driver.ended() == 0
    back = site.command("plan", "rollback", plan["id"])
    assert back.returncode == 0, back.stderr
    assert site.publication()["release"] == before["release"]
    site.refuse_any_loss()
    driver = site.drive()
    site.send(200)
    site.await_published(driver)
    assert site.command("plan", "retire", plan["id"]).returncode == 0
    assert json.loads(active_releases_path(site.settings, site.dataset).read_text()) == [before["release"]]
    site.refuse_any_loss()
    assert "identical" in site.command("ledger", "rebuild").stdout
