"""Tables kept small beside the stream, and by a job of its own that is killed half way: nothing is lost or doubled."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from site_of_recovery import Site

from include.planning.plan import REPLAY, Plan, Prediction, Stage
from include.planning.plan_journal import record_stage, save_plan
from include.reading.publication import read_publication

pytestmark = pytest.mark.extended

LEFT_ALONE, REFUSED = 1, 2
# As many as a partition must have before they are put together.
BATCHES = 9


def maintained(site: Site) -> dict[str, Any]:
    done = site.command("maintain", "--dataset", site.dataset, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = {table["table"]: table for table in json.loads(done.stdout)["tables"]}
    return found


@pytest.mark.timeout(600)
def test_maintained_beside_the_stream_and_through_deaths(site: Site) -> None:
    driver = site.drive()
    for _ in range(BATCHES):
        site.send(20)
        site.await_published(driver)
    driver.send(signal.SIGTERM)
    assert driver.ended() == 0

    # By a job of its own: killed between the new file and its commit, nothing of it is seen.
    before = read_publication(site.settings, site.dataset)
    wish = {"HEADRACE_FAILPOINT": "kill:maintain.put-together"}
    killed = site.command("maintain", "--dataset", site.dataset, **wish)
    assert (killed.returncode, "ended with -9" in killed.stdout) == (LEFT_ALONE, True), killed.stderr
    assert read_publication(site.settings, site.dataset) == before
    site.refuse_any_loss()
    assert any(table["now"] < table["files"] for table in maintained(site).values())
    site.refuse_any_loss()

    # A plan that is open looks at versions: its tables are left alone.
    driver = site.drive()
    release = before.release
    plan = Plan(
        f"replay-{site.dataset}-1", REPLAY, site.dataset, release, release, before.published_at, "ann", 0.0, [],
        Prediction(1, 1, 1, 1, 1.0, 1.0),
    )  # fmt: skip
    save_plan(site.settings, plan)
    left = site.command("maintain", "--dataset", site.dataset)
    assert (left.returncode, plan.id in left.stdout) == (LEFT_ALONE, True)
    record_stage(site.settings, plan.id, Stage.CANCELLED, "ann")

    # By the stream, between two runs: it goes on with what it has put together.
    site.send(20)
    site.await_published(driver)
    for _ in range(BATCHES):
        site.send(20)
        site.await_published(driver)
    again = maintained(site)
    assert any(table["now"] < table["files"] for table in again.values())
    assert driver.process.poll() is None
    site.send(20)
    site.await_published(driver)
    site.refuse_any_loss()
    assert "identical" in site.command("ledger", "rebuild").stdout
