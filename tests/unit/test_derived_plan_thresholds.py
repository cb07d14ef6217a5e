"""A plan of a derived dataset needs approval exactly when more differs than the requested share of a table's keys."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from include.change.plan_parameters import BackfillParameters, ReleaseParameters
from include.change.recompute import DerivedBackfillPlan
from include.change.release import ReleasePlan
from include.change.stages import compare_built, needs_approval
from include.declare.derived_dataset import released_derived, snapshot_derived
from include.ground.paths import warehouse
from include.ground.settings import CLONE, Settings
from include.plans.comparison import NEEDS_APPROVAL, WITHIN_POLICY
from include.plans.journal import load_plan, record_result
from include.plans.plan import ReleaseBuilt
from include.read.publication import Publication, TableVersion, publish, read_publication

NAME = "departures"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOURS = 4
DECLARED = {
    "sources": {"flights": "silver.flights"},
    "gold": {
        "departure_hours": {
            "query": "gold/departure_hours.sql",
            "grain": ["hour"],
            "touched_by": {"flights": {"hour": "date_trunc('hour', scheduled_departure)"}},
        }
    },
}
QUERY = "select date_trunc('hour', scheduled_departure) as hour, count(*) as departures from flights group by 1\n"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Four hours of a derived dataset are published, then its folder is changed."""
    datasets, ignored = tmp_path / "datasets", shutil.ignore_patterns("__pycache__")
    shutil.copytree(CLONE / "include" / "datasets" / "flights", datasets / "flights", ignore=ignored)
    query = datasets / NAME / "gold" / "departure_hours.sql"
    query.parent.mkdir(parents=True)
    (datasets / NAME / "derived.yaml").write_text(json.dumps(DECLARED))
    query.write_text(QUERY)
    settings = Settings(state=tmp_path / "state", datasets=datasets)
    publish(settings, built(settings, snapshot_derived(settings, NAME).release, differing=0))
    query.write_text(QUERY + "-- changed\n")
    return settings


def built(settings: Settings, release: str, differing: int) -> Publication:
    """Write the table of a release, of which some hours have one departure more."""
    path = f"{NAME}/{release}/gold/departure_hours"
    hours = [NOON + timedelta(hours=n) for n in range(HOURS)]
    counts = [7 + (n < differing) for n in range(HOURS)]
    pl.DataFrame({"hour": hours, "departures": counts}).write_delta(warehouse(settings) / path)
    return Publication(NAME, release, 3, NOON, {}, {"gold.departure_hours": TableVersion(path, 0)}, {})


@pytest.mark.parametrize(("differing", "verdict"), [(1, WITHIN_POLICY), (2, NEEDS_APPROVAL)])
def test_release_needs_approval_beyond_the_requested_share(settings: Settings, differing: int, verdict: str) -> None:
    record = ReleasePlan().plan(settings, NAME, ReleaseParameters(threshold=0.25), "ann", NOON)
    assert load_plan(settings, record.plan.id).plan.threshold == 0.25
    tables = built(settings, released_derived(settings, NAME, record.plan.release).release, differing)
    result = ReleaseBuilt(batch=3, built=tables, published=read_publication(settings, NAME))
    record, found = compare_built(settings, record_result(settings, record.plan.id, result, "ann"), "ann", print)
    assert (found.tables[0].changed, found.tables[0].old_keys) == (differing, HOURS)
    assert (found.verdict, needs_approval(record)) == (verdict, verdict == NEEDS_APPROVAL)


def test_backfill_keeps_the_requested_share(settings: Settings) -> None:
    parameters = BackfillParameters(start=NOON, end=NOON + timedelta(hours=1), threshold=0.25)
    record = DerivedBackfillPlan().plan(settings, NAME, parameters, "ann", NOON)
    assert (record.plan.threshold, load_plan(settings, record.plan.id).plan.threshold) == (0.25, 0.25)
