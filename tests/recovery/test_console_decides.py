"""A logged-in user decides about real plans in a browser while the stream runs; what readers see moves, and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from recovery_site import Site
from served_console import served_console
from shipped_release import NEEDED, REFUSED, only_plan, ship_doubled_litres

from include.plans.journal import load_plan
from include.plans.plan import Stage
from include.read.published_tables import pinned
from include.serve.action_log import last_actions
from include.serve.log_in import add_user

CHROMIUM = "/usr/bin/chromium"
USER, PASSWORD = "ann", "correct horse"
MILLISECONDS = 90_000


@contextmanager
def logged_in(address: str) -> Iterator[Page]:
    """Yield a page of a browser in which the user is logged in; every question is answered with yes."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(base_url=address).new_page()
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto("/log-in")
        page.get_by_label("User").fill(USER)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        yield page
        browser.close()


def decide(page: Page, plan: str, label: str) -> None:
    """Press a button of a plan's page, and wait without reloading until the page reports that it is done."""
    page.goto(f"/plans/{plan}")
    page.get_by_role("button", name=label).click()
    expect(page.get_by_text(f"{label} by {USER} is done.")).to_be_visible(timeout=MILLISECONDS)
    assert page.get_by_role("button", name=label).count() == 0, "what was decided is not offered again"


def litres(site: Site) -> int:
    found = pinned(site.settings).read(f"silver.{site.dataset}").select("litres").sum().collect().item()
    return int(found)


@pytest.mark.timeout(600)
@pytest.mark.extended
def test_release_is_approved_applied_and_rolled_back_and_another_rejected_in_the_console(
    site: Site, tmp_path: Path
) -> None:
    driver = site.start_driver()
    site.send(400)
    site.wait_published(driver)
    before = litres(site)
    ship_doubled_litres(site)
    assert site.command("release", "run", "--dataset", site.dataset).returncode == NEEDED
    plan = only_plan(site)["id"]

    add_user(tmp_path / "passwords", USER, PASSWORD)
    environment = site.environment({"HEADRACE_CONSOLE_PASSWORDS": str(tmp_path / "passwords")})
    with served_console(environment) as (address, _), logged_in(address) as page:
        decide(page, plan, "Approve")
        assert (load_plan(site.settings, plan).stage, litres(site)) == (Stage.APPROVED, before)
        decide(page, plan, "Apply")
        assert (load_plan(site.settings, plan).stage, litres(site)) == (Stage.APPLIED, 2 * before)
        decide(page, plan, "Roll back")
        assert (load_plan(site.settings, plan).stage, litres(site)) == (Stage.ROLLED_BACK, before)

        ended = site.command("plan", "retire", plan)
        assert ended.returncode == 0, ended.stderr
        assert site.command("release", "run", "--dataset", site.dataset).returncode == NEEDED
        second = next(each["id"] for each in _plans(site) if each["id"] != plan)
        decide(page, second, "Reject")
        assert (load_plan(site.settings, second).stage, litres(site)) == (Stage.REJECTED, before)
        refused = site.command("plan", "apply", second)
        assert refused.returncode == REFUSED, refused.stdout

    logged = [(each.what, each.outcome) for each in last_actions(site.settings, 20, plan)]
    assert logged == [(what, how) for what in ("rollback", "apply", "approve") for how in ("done", "requested")]
    site.send(200)
    site.wait_published(driver)
    site.assert_nothing_lost()


def _plans(site: Site) -> list[dict[str, str]]:
    found = json.loads(site.command("plan", "list", "--json").stdout)
    return [each for each in found if each["dataset"] == site.dataset]
