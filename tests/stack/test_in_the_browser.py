"""The platform as a user sees it: Airflow's page and the console in Chromium.

Screenshots are kept under build/screenshots/; `make pictures` copies into docs/pictures/ those that are there already.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from site_of_stack import DATASET, Stack, await_that
from stack_tools.airflow_rest import ANSWER_AFTER

from include.ground.settings import CLONE
from include.plans.plan import Stage
from include.run.airflow_process import USER
from include.state.process_states import CONSOLE
from include.state.run_files import read_run_file

CHROMIUM = "/usr/bin/chromium"
SCREENSHOTS = CLONE / "build" / "screenshots"
REPLAY, STREAM, ROLLBACK = f"replay__{DATASET}", f"stream__{DATASET}", f"rollback__{DATASET}"
QUALITY = f"quality__{DATASET}"
pytestmark = [pytest.mark.timeout(900), pytest.mark.extended]


@pytest.fixture(scope="module")
def page(stack: Stack) -> Iterator[Page]:
    """A browser that has logged in by the form."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        expect.set_options(timeout=30_000)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        logged_in = browser.new_page(viewport={"width": 1400, "height": 1100})
        logged_in.set_default_timeout(60_000)
        logged_in.goto(f"{stack.page.address}/auth/login")
        logged_in.fill("input[name=username]", USER)
        logged_in.fill("input[name=password]", stack.page.password)
        logged_in.click("button[type=submit]")
        logged_in.wait_for_url(f"{stack.page.address}/")
        yield logged_in
        browser.close()


def keep(page: Page, name: str) -> Path:
    """Take a screenshot once nothing is loading any more."""
    page.wait_for_load_state("networkidle")
    path = SCREENSHOTS / f"{name}.png"
    page.screenshot(path=path)
    return path


def test_dag_list_shows_no_import_error(stack: Stack, page: Page) -> None:
    page.goto(f"{stack.page.address}/dags")
    for dag in (REPLAY, STREAM, f"backfill__{DATASET}", "audit"):
        expect(page.get_by_role("link", name=dag, exact=True).first).to_be_visible()
    assert keep(page, "airflow-dags").stat().st_size > 10_000
    page.goto(stack.page.address)
    keep(page, "airflow-home")
    expect(page.get_by_text(re.compile("import error", re.IGNORECASE))).to_have_count(0)


def test_navigation_leads_to_the_console(stack: Stack, page: Page) -> None:
    page.goto(stack.page.address)
    page.get_by_role("button", name="Browse").click()
    with page.context.expect_page() as opened:
        page.get_by_role("menuitem", name="Headrace").click()
    console = opened.value
    expect(console.get_by_role("heading", name="Overview")).to_be_visible()
    expect(console.get_by_role("link", name=DATASET)).to_be_visible()
    keep(console, "console-before-the-first-stream")
    console.close()


@pytest.mark.parametrize("dag", [REPLAY, ROLLBACK, f"release__{DATASET}", f"backfill__{DATASET}", STREAM, "audit"])
def test_form_can_be_submitted_as_it_opens(stack: Stack, page: Page, dag: str) -> None:
    page.goto(f"{stack.page.address}/dags/{dag}")
    page.get_by_test_id("trigger-dag-button").click()
    expect(page.get_by_text("Run Parameters")).to_be_visible()
    expect(page.get_by_test_id("trigger-dag-submit")).to_be_enabled()


def test_stream_page_shows_its_health(stack: Stack, page: Page) -> None:
    page.goto(f"{stack.page.address}/dags/{STREAM}")
    if stack.page.call("GET", f"/dags/{STREAM}")["is_paused"]:
        page.locator("label:has(input[type=checkbox])").first.click()
    await_that(lambda: "running" in {run["state"] for run in stack.page.runs(STREAM)}, "the DAG has a run", 90)
    run = stack.page.runs(STREAM)[-1]["dag_run_id"]
    stack.page.await_task(STREAM, run, "keep", "deferred")
    await_that(lambda: "running, batch" in stack.page.log(STREAM, run, "keep"), "the log shows the health")
    page.goto(f"{stack.page.address}/dags/{STREAM}/runs/{run}/tasks/keep")
    expect(page.get_by_text(re.compile(f"{DATASET}: running, batch")).first).to_be_visible()
    keep(page, "airflow-stream")


def test_replay_is_submitted_and_approved_in_the_form(stack: Stack, page: Page) -> None:
    stack.feed("2013-01-01", "2013-01-02")
    stack.page.call("PATCH", f"/dags/{STREAM}", {"is_paused": True})
    stack.page.call(
        "PATCH", f"/dags/{STREAM}/dagRuns/{stack.page.runs(STREAM)[-1]['dag_run_id']}", {"state": "success"}
    )
    await_that(lambda: stack.drivers() == [], "the stream has drained", 60)
    # Two partitions: the first day may be in more batches than one.
    last = stack.publication().batch
    stack.lose("gold.carrier_hours", "carrier = 'B6'")
    stack.page.call("PATCH", f"/dags/{STREAM}", {"is_paused": False})
    await_that(lambda: stack.status()[f"stream:{DATASET}"]["state"] == "running", "the stream runs again", 120)
    stack.feed("2013-01-02", "2013-01-03")

    page.goto(f"{stack.page.address}/dags/{REPLAY}")
    page.get_by_test_id("trigger-dag-button").click()
    expect(page.get_by_text("Which records")).to_be_visible()
    keep(page, "airflow-replay-form")
    choice = page.locator("input[name=element_by]").locator("xpath=..").get_by_role("combobox")
    choice.fill("bronze batches")
    choice.press("Enter")
    page.get_by_role("button", name="by batches").click()
    page.fill("input[name=element_first_batch]", "0")
    page.fill("input[name=element_last_batch]", str(last))
    keep(page, "airflow-replay-filled-in")
    before = {run["dag_run_id"] for run in stack.page.runs(REPLAY)}
    page.get_by_test_id("trigger-dag-submit").click()
    await_that(lambda: {r["dag_run_id"] for r in stack.page.runs(REPLAY)} > before, "the form was submitted", 60)
    (run,) = {run["dag_run_id"] for run in stack.page.runs(REPLAY)} - before

    stack.page.await_task(REPLAY, run, "approve", "awaiting_input")
    page.goto(f"{stack.page.address}/dags/{REPLAY}/runs/{run}/tasks/approve/required_actions")
    expect(page.get_by_text("needs approval")).to_be_visible()
    keep(page, "airflow-approval")
    page.wait_for_timeout(1000 * ANSWER_AFTER)
    page.get_by_role("button", name="Approve").click()
    assert stack.page.await_run(REPLAY, run) == "success", stack.page.story(REPLAY, run)
    page.goto(f"{stack.page.address}/dags/{REPLAY}/runs/{run}")
    expect(page.get_by_role("link", name="apply").first).to_be_visible()
    keep(page, "airflow-published")
    (record,) = stack.plans(f"{REPLAY}/{run}")
    assert (record.stage, record.plan.requested) == (Stage.APPLIED, f"batches 0 to {last}")
    assert stack.is_balanced()


def test_task_links_to_the_comparison(stack: Stack, page: Page) -> None:
    run = stack.page.runs(REPLAY)[-1]["dag_run_id"]
    page.goto(f"{stack.page.address}/dags/{REPLAY}/runs/{run}/tasks/compare/details")
    button = page.get_by_role("link", name="Comparison")
    expect(button).to_be_visible(timeout=30_000)
    page.goto(f"{stack.page.address}{button.get_attribute('href')}")
    expect(page.get_by_text("gold.carrier_hours").first).to_be_visible()
    keep(page, "airflow-comparison")


def test_plan_is_rolled_back_in_the_form(stack: Stack, page: Page) -> None:
    page.goto(f"{stack.page.address}/dags/{ROLLBACK}")
    page.get_by_test_id("trigger-dag-button").click()
    expect(page.get_by_text("Empty: the last applied one")).to_be_visible()
    keep(page, "airflow-rollback-form")
    before = {run["dag_run_id"] for run in stack.page.runs(ROLLBACK)}
    page.get_by_test_id("trigger-dag-submit").click()
    await_that(lambda: {r["dag_run_id"] for r in stack.page.runs(ROLLBACK)} > before, "the form was submitted", 60)
    (run,) = {run["dag_run_id"] for run in stack.page.runs(ROLLBACK)} - before
    assert stack.page.await_run(ROLLBACK, run) == "success", stack.page.story(ROLLBACK, run)
    (record,) = stack.plans(f"{REPLAY}/{stack.page.runs(REPLAY)[-1]['dag_run_id']}")
    page.goto(f"{stack.page.address}/dags/{ROLLBACK}/runs/{run}/tasks/roll_back")
    expect(page.get_by_text(f"plan {record.plan.id} is rolled back").first).to_be_visible()
    keep(page, "airflow-rolled-back")
    assert record.stage is Stage.ROLLED_BACK
    assert stack.is_balanced()


def test_task_links_to_its_rule_results(stack: Stack, page: Page) -> None:
    run = stack.page.trigger(QUALITY)
    assert stack.page.await_run(QUALITY, run) == "success", stack.page.story(QUALITY, run)
    page.goto(f"{stack.page.address}/dags/{QUALITY}/runs/{run}/tasks/validate/details")
    button = page.get_by_role("link", name="Rule results")
    expect(button).to_be_visible(timeout=30_000)
    keep(page, "airflow-quality")
    page.goto(f"{stack.page.address}{button.get_attribute('href')}")
    expect(page.get_by_text("rules passed")).to_be_visible()
    expect(page.get_by_role("cell", name="gold.").first).to_be_visible()
    keep(page, "airflow-rule-results")


DARK, PHONE = {"dark": True}, {"width": 390}


@pytest.mark.parametrize(
    ("path", "shown", "name", "look"),
    [
        ("", "balanced", "console-overview", {}),
        ("", "balanced", "console-overview-phone", PHONE),
        ("/datasets/flights", "Journey of a record", "console-dataset-dark", DARK),
        ("/plans/{plan}", "carrier_hours", "console-plan", {}),
        ("/tables/gold.carrier_hours", "carrier", "console-table", {}),
        ("/lineage", "Lineage", "console-lineage", {}),
    ],
)
def test_console_shows_what_airflow_did(
    stack: Stack, page: Page, path: str, shown: str, name: str, look: dict[str, int]
) -> None:
    replay = stack.page.runs(REPLAY)[-1]["dag_run_id"]
    (record,) = stack.plans(f"{REPLAY}/{replay}")
    console = read_run_file(stack.settings, CONSOLE)
    assert console is not None
    page.emulate_media(color_scheme="dark" if look.get("dark") else "light")
    page.set_viewport_size({"width": look.get("width", 1400), "height": 1100})
    page.goto(f"{console.extra['page']}{path.format(plan=record.plan.id)}")
    expect(page.get_by_text(shown).first).to_be_visible()
    keep(page, name)
