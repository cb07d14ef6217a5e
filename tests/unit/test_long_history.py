"""Thousands of ended plans: lists, look-ups and the removal open the plans that they need, not all of history."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from plan_samples import NOON, TO_APPLIED, advanced, plan_at, publication, result_of, sample_plan
from typer.testing import CliRunner

from include.change import release as release_plan
from include.cli import main
from include.declare.dataset import snapshot_dataset
from include.ground.paths import plan_path, release_path
from include.ground.settings import Settings
from include.plans import journal as plan_journal
from include.plans.journal import SUGGESTED, PlanUnknown, load_plan, next_plan_id, open_plans, record_result, save_plan
from include.plans.plan import BACKFILL, REPLAY, Stage
from include.read.publication import publish
from include.serve.plans import PAGE, plans_part
from include.serve.work import last_plan
from spark_jobs.stream.upkeep import AutomaticRemoval

COPIES = 250
OPENED: list[str] = []
IS_COUNTING = [False]
PLAN_FILE = re.compile(r"plans/([^./][^/]*)/(?:plan\.json|events\.jsonl)$")


def note_opened(event: str, parameters: tuple[object, ...]) -> None:
    if IS_COUNTING[0] and event == "open" and (found := PLAN_FILE.search(str(parameters[0]))):
        OPENED.append(found[1])


sys.addaudithook(note_opened)


def opened_by(work: Callable[[], object]) -> set[str]:
    """The plans whose files a fresh process opens for a work."""
    plan_journal._read_folder.cache_clear()
    OPENED.clear()
    IS_COUNTING[0] = True
    try:
        work()
    finally:
        IS_COUNTING[0] = False
    return set(OPENED)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Plans of each kind that ended in January, each copied as often; their data is gone."""
    settings = Settings(state=tmp_path / "state")
    publish(settings, replace(publication(snapshot_dataset(settings, "flights").release), published_at=NOON))
    verified = save_plan(settings, sample_plan(settings, BACKFILL))
    ended = [
        plan_at(settings, Stage.CANCELLED, release="old"),
        plan_at(settings, *TO_APPLIED, Stage.RETIRED, base="older", release="old"),
        plan_at(settings, *TO_APPLIED, Stage.ROLLED_BACK, kind=REPLAY),
        advanced(settings, verified, *TO_APPLIED, changed=0),
    ]
    for record in ended:
        copy_ended(settings, record.plan.id)
    removal = AutomaticRemoval(next_check=0)
    while removal.step(settings, "flights"):
        pass
    return settings


def copy_ended(settings: Settings, plan: str) -> None:
    """Set a plan's events back to January, and copy it under the numbers that follow."""
    folder, (series, _, number) = plan_path(settings, plan), plan.rpartition("-")
    events = [
        json.loads(line) | {"at": NOON.isoformat()} for line in (folder / "events.jsonl").read_text().splitlines()
    ]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    for copied in range(int(number) * 10_000, int(number) * 10_000 + COPIES):
        shutil.copytree(folder, copy := plan_path(settings, f"{series}-{copied}"))
        (copy / "plan.json").write_text((folder / "plan.json").read_text().replace(plan, copy.name))


def test_list_opens_the_plans_that_it_shows(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("include.cli.plan.load_settings", lambda: settings)
    applied = plan_at(settings, *TO_APPLIED, planned_at=NOON + timedelta(days=1)).plan.id
    shown: list[str] = []

    def plan_list(*options: str) -> None:
        result = CliRunner().invoke(main.app, ["plan", "list", *options])
        assert result.exit_code == 0
        shown[:] = [line.split()[0] for line in result.stdout.splitlines()[1:]]
        assert ("--limit N or --all" in result.stderr) is ("--all" not in options)

    assert opened_by(plan_list) == {*shown}
    assert (len(shown), shown[0]) == (50, applied)
    assert opened_by(partial(plan_list, "--limit", "3")) == {*shown}
    assert len(shown) == 3
    plan_list("--all")
    assert len(shown) == 4 * COPIES + 5


def test_page_of_the_console_opens_the_plans_that_it_shows(settings: Settings) -> None:
    pages = []
    assert len(opened_by(lambda: pages.append(plans_part(settings, 2)))) == PAGE
    (page,) = pages
    assert (len(page["lines"]), page["total"], page["newer"], page["older"]) == (PAGE, 4 * COPIES + 4, 1, 3)


def test_rollback_of_the_last_applied_plan_opens_this_one(settings: Settings) -> None:
    for plan in (first := plan_at(settings, *TO_APPLIED), last := plan_at(settings, *TO_APPLIED)):
        assert plan.stage is Stage.APPLIED
    found: list[str] = []
    assert opened_by(lambda: found.append(last_plan(settings, "flights", "ann (a/run)"))) == {last.plan.id}
    record_result(settings, last.plan.id, result_of(Stage.ROLLED_BACK), "ann (a/run)")
    assert opened_by(lambda: found.append(last_plan(settings, "flights", "ann (a/run)"))) == {last.plan.id}
    assert opened_by(lambda: found.append(last_plan(settings, "flights", "ann (b/run)"))) == {first.plan.id}
    assert found == [last.plan.id, last.plan.id, first.plan.id]


def test_retirement_opens_the_plans_of_releases_in_use(settings: Settings) -> None:
    plan, other = plan_at(settings, *TO_APPLIED), plan_at(settings, *TO_APPLIED, planned_at=NOON + timedelta(days=1))
    needed = partial(release_plan._needed_by_others, settings, plan.plan, "aaa")
    assert opened_by(lambda: list(needed())) == {plan.plan.id, other.plan.id}


def test_removal_opens_the_plans_that_may_have_data(settings: Settings) -> None:
    plan = plan_at(settings, Stage.CANCELLED)
    tables = release_path(settings, "flights", "bbb")
    tables.mkdir(parents=True)
    plan_at(settings, Stage.CANCELLED, dataset="weather")
    removal = AutomaticRemoval(next_check=0)
    assert opened_by(lambda: removal.step(settings, "flights")) == {plan.plan.id}
    assert tables.exists(), "the retention has not passed"


def test_ids_are_found_without_opening_a_plan(settings: Settings) -> None:
    assert opened_by(lambda: open_plans(settings)) == set()
    assert opened_by(lambda: next_plan_id(settings, BACKFILL, "flights")) == set()
    with pytest.raises(PlanUnknown) as unknown:
        load_plan(settings, "release-flights-99999999")
    assert len(unknown.value.newest) == SUGGESTED
