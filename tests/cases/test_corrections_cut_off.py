"""The owner of the tables dies at each step of a correction: the next one finishes it; readers see no state between."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from histories import History
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from small_release import SmallRelease, small_release
from test_slices import BATCHES, WINNERS_OWN, Visible, from_scratch, lower_distance, visible

from include.catalog.dataset import snapshot_dataset
from include.paths import patch_in_progress_path
from include.reading.amendments import DISCARD, Decision, append_decisions
from include.settings import Settings
from include.state.owner_requests import OwnerRequest, RequestKind, pending_request, respond, submit_request
from spark_jobs.engine import active_releases
from spark_jobs.engine.active_releases import open_active_releases
from spark_jobs.engine.apply_patch import Patch
from spark_jobs.engine.execute_request import execute
from spark_jobs.storage.failpoints import Step
from spark_jobs.storage.lease import Lease, take_lease

STEPS = [step for step in Step if step.value.startswith("correction.")]


@pytest.fixture
def told(spark: SparkSession, tmp_path: Path) -> History:
    release = small_release(spark, Settings(state=tmp_path / "production"), "flights")
    snapshot_dataset(release.settings, "flights")
    for records in BATCHES:
        release.take(records)
    return History(release, tmp_path)


def life(release: SmallRelease, order: OwnerRequest, step: Step | None) -> bool:
    """One life of the owner: it finishes what was begun, then obeys; return whether it died at `step`."""
    if pending_request(release.settings, "flights") is None:
        submit_request(release.settings, "flights", order)
    try:
        with locks_go_with_it(), dying_at(step):
            owner = open_active_releases(release.spark, release.settings, release.dataset, release.bronze)
            answer = execute(owner, order)
    except Died:
        return True
    respond(release.settings, "flights", answer)
    assert answer.refused == ""
    return False


@contextmanager
def locks_go_with_it() -> Iterator[None]:
    """The locks of a process go away with it: here, when its life is over."""
    taken: list[Lease] = []

    def noted(*facts: Any) -> Lease:
        taken.append(take_lease(*facts))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(active_releases, "take_lease", noted)
        try:
            yield
        finally:
            for lease in taken:
                lease.release()


def lives(release: SmallRelease, order: OwnerRequest, states: tuple[Visible, Visible]) -> None:
    for step in STEPS:
        assert life(release, order, step), f"{step} was never passed"
        release.restart()
        assert visible(release) in states, step
    assert not life(release, order, None)
    release.restart()
    assert visible(release) == states[1]
    assert not patch_in_progress_path(release.settings, "flights", release.dataset.release).exists()


def orders(release: SmallRelease, correction: Patch) -> tuple[OwnerRequest, OwnerRequest]:
    built = {"attempt": "one", "batch": correction.built, "filled": 0, "decided_until": 0}
    (correction.folder.path / "built.json").write_text(json.dumps(built))
    name = release.dataset.release
    return OwnerRequest(correction.plan, RequestKind.APPLY_PATCH, name, "one"), OwnerRequest(
        correction.plan, RequestKind.REVERT_PATCH, name, "one"
    )


def test_cut_off_at_each_step_and_finished(told: History) -> None:
    release, before = told.production, visible(told.production)
    expected = from_scratch(told, lower_distance, BATCHES)
    correction, _, _ = told.redo(WINNERS_OWN, lower_distance)
    there, back = orders(release, correction)
    lives(release, there, (before, expected))
    versions = release.versions()
    assert not life(release, there, None)
    release.restart()
    assert release.versions() == versions
    lives(release, back, (expected, before))


def test_what_was_decided_since_is_not_passed_over(told: History) -> None:
    """A record is discarded between the build and its apply: the rows that were built know nothing of it."""
    release, before = told.production, visible(told.production)
    correction, _, _ = told.redo(WINNERS_OWN, lower_distance)
    there, _ = orders(release, correction)
    discarded = Decision(DISCARD, 0, 103, batch=0, at=datetime(2026, 12, 1, tzinfo=UTC), by="ann", why="a test")
    assert append_decisions(release.settings, "flights", [discarded]) == 1
    submit_request(release.settings, "flights", there)
    with locks_go_with_it():
        answer = execute(open_active_releases(release.spark, release.settings, release.dataset, release.bronze), there)
    assert "decision about rejected records" in answer.refused
    assert answer.remedy == f"headrace plan compare {correction.plan}"
    assert visible(release) == before
