"""A changed folder shipped beside the running stream: built, compared, seen by readers in one move, and taken back."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from polling import Poll
from site_of_recovery import Site, await_that

from include.places import live_path
from include.planning import execute
from include.planning.journal import load_plan
from include.planning.plan import PlanRecord
from include.reading import pinned
from include.supervision.orders import PROMOTE, Order, find_order, give_order

READS = 1_000
NEEDED, REFUSED = 1, 2


def double_litres(site: Site) -> None:
    """The wrong rule that is shipped: every litre counts twice, in silver and so in all gold."""
    path = site.settings.datasets / site.dataset / "silver.py"
    text = path.read_text("utf-8")
    assert "return accepted" in text
    path.write_text(text.replace("return accepted", 'return accepted.withColumn("litres", accepted.litres * 2)'))


def the_plan(site: Site) -> dict[str, Any]:
    (found,) = [
        plan for plan in json.loads(site.command("plan", "list", "--json").stdout) if plan["dataset"] == site.dataset
    ]
    assert isinstance(found, dict)
    return found


def moved(site: Site, act: Callable[..., PlanRecord], plan: str) -> None:
    act(site.settings, load_plan(site.settings, plan), "test")


def poll_while_it_moves(site: Site, plan: str, sums: tuple[int, int]) -> None:
    """Read again and again while the plan is rolled back and applied, back and forth."""
    poll = Poll(site, *((litres, litres) for litres in sums))
    with poll.going_on():
        while len(poll.reads) < READS and poll.is_alive:
            moved(site, execute.roll_back, plan)
            moved(site, execute.apply, plan)
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
    give_order(site.settings, site.dataset, Order(plan["id"], PROMOTE, plan["release"]))
    driver.send(signal.SIGKILL)
    driver.ended()
    driver = site.drive()
    await_that(lambda: find_order(site.settings, site.dataset) is None, "the order is obeyed", driver)
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
    assert json.loads(live_path(site.settings, site.dataset).read_text()) == [before["release"]]
    site.refuse_any_loss()
    assert "identical" in site.command("ledger", "rebuild").stdout


def a_table_more_and_one_less(site: Site) -> None:
    """What the second release declares: days instead of peaks."""
    path = site.settings.datasets / site.dataset / "pipeline.yaml"
    head, peaks, _ = path.read_text("utf-8").partition(f"  {site.dataset}_peaks:")
    assert peaks
    days = f"""\
  {site.dataset}_days:
    kind: additive
    window: {{column: read_at, unit: day, as: day}}
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
def test_release_from_a_batch_on_with_a_table_more_and_one_less(site: Site) -> None:
    driver = site.drive()
    for _ in range(3):
        site.send(100)
        site.await_published(driver)
    before, point = litres_by_batch(site), site.publication()["batch"]
    double_litres(site)
    a_table_more_and_one_less(site)
    release = ("release", "run", "--dataset", site.dataset, "--yes")
    refused = site.command(*release, "--from-batch", str(point + 100))
    assert (refused.returncode, "is not published" in refused.stderr) == (REFUSED, True)

    killed = site.command(*release, "--from-batch", str(point), HEADRACE_FAILPOINT="kill:4.silver-committed")
    assert killed.returncode == REFUSED, killed.stdout
    plan = the_plan(site)["id"]
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

    # It goes on by its own rules, and the way back has all tables of before.
    site.send(100)
    site.await_published(driver)
    assert site.command("plan", "rollback", plan).returncode == 0
    assert f"gold.{site.dataset}_peaks" in pinned(site.settings).tables
    site.refuse_any_loss()
    nothing = site.command("release", "plan", "--dataset", site.dataset, "--from-batch", str(point))
    assert (nothing.returncode, "is kept fresh" in nothing.stderr) == (REFUSED, True)
