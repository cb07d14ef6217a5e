"""A driver dies at each step of a patch: the next driver finishes it, and readers never see a partial patch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fewer_gold_tables import flights_with_gold
from pyspark.sql import SparkSession
from simulated_deaths import Died, dying_at
from slice_patcher import SlicePatcher
from small_release import SmallRelease, small_release
from test_slices import BATCHES, WINNER_ONLY, Visible, from_scratch, lower_distance, visible

from include.declare.dataset import snapshot_dataset
from include.ground.errors import Terminal
from include.ground.paths import patch_in_progress_path
from include.ground.settings import Settings
from include.read.rejected_records import DISCARD, Decision, append_decisions
from include.state.lease import Lease, take_lease
from include.state.owner_requests import OwnerRequest, RequestKind, pending_request, respond, submit_request
from include.state.release_files import PatchDirection
from spark_jobs.history.apply_patch import Patch
from spark_jobs.stream import active_releases
from spark_jobs.stream.active_releases import open_active_releases
from spark_jobs.tables.failpoints import Step

STEPS = [step for step in Step if step.value.startswith("patch.")]


@pytest.fixture
def patcher(spark: SparkSession, tmp_path: Path) -> SlicePatcher:
    dataset = flights_with_gold("carrier_hours", "flight_status")
    settings = Settings(state=tmp_path / "production", datasets=dataset.parent)
    release = small_release(spark, settings, "flights", dataset)
    snapshot_dataset(release.settings, "flights")
    for records in BATCHES:
        release.take(records)
    return SlicePatcher(release, tmp_path)


def execute_until(release: SmallRelease, request: OwnerRequest, step: Step | None) -> bool:
    """Start an owner, which finishes an unfinished patch and executes the request; return whether it died at `step`."""
    if pending_request(release.settings, "flights") is None:
        submit_request(release.settings, "flights", request)
    try:
        with leases_released_at_exit(), dying_at(step):
            owner = open_active_releases(release.spark, release.settings, release.dataset, release.bronze)
            response = owner.answer(request)
    except Died:
        return True
    respond(release.settings, "flights", response)
    assert response.refused == ""
    return False


@contextmanager
def leases_released_at_exit() -> Iterator[None]:
    """Release the leases taken inside, as the OS does when a process ends."""
    taken: list[Lease] = []

    def recorded(*arguments: Any) -> Lease:
        taken.append(take_lease(*arguments))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(active_releases, "take_lease", recorded)
        try:
            yield
        finally:
            for lease in filter(is_open, taken):
                lease.release()


def is_open(lease: Lease) -> bool:
    """Whether a lease is still to be released: a release that fails to open has released its own."""
    try:
        return lease.is_held()
    except OSError:
        return False


def crash_at_every_step(release: SmallRelease, request: OwnerRequest, states: tuple[Visible, Visible]) -> None:
    """Every restart shows one of `states` = (before, after); the last one, without a crash, shows `after`."""
    for step in STEPS:
        assert execute_until(release, request, step), f"{step} was never passed"
        assert visible(release) in states, step
    assert not execute_until(release, request, None)
    assert visible(release) == states[1]
    assert not patch_in_progress_path(release.settings, "flights", release.dataset.release).exists()


def apply_and_revert_requests(release: SmallRelease, patch: Patch) -> tuple[OwnerRequest, OwnerRequest]:
    built = {"attempt": "one", "batch": patch.built, "filled": 0, "decided_until": 0}
    (patch.folder.path / "built.json").write_text(json.dumps(built))
    name = release.dataset.release
    return OwnerRequest(patch.plan, RequestKind.APPLY_PATCH, name, "one"), OwnerRequest(
        patch.plan, RequestKind.REVERT_PATCH, name, "one"
    )


def test_patch_interrupted_at_each_step_is_finished_by_next_owner(patcher: SlicePatcher) -> None:
    release, before = patcher.production, visible(patcher.production)
    expected = from_scratch(patcher, lower_distance, BATCHES)
    patch, _, _ = patcher.rebuild(WINNER_ONLY, lower_distance)
    apply, _ = apply_and_revert_requests(release, patch)
    crash_at_every_step(release, apply, (before, expected))
    release.restart()
    versions = release.versions()
    assert not execute_until(release, apply, None)
    release.restart()
    assert release.versions() == versions


@pytest.mark.extended
def test_reverted_patch_interrupted_at_each_step_is_finished_by_next_owner(patcher: SlicePatcher) -> None:
    release, before = patcher.production, visible(patcher.production)
    patch, _, _ = patcher.rebuild(WINNER_ONLY, lower_distance)
    apply, revert = apply_and_revert_requests(release, patch)
    assert not execute_until(release, apply, None)
    crash_at_every_step(release, revert, (visible(release), before))


@pytest.mark.extended
def test_patch_is_refused_after_newer_decision(patcher: SlicePatcher) -> None:
    """A record is discarded after the patch was built, so the patch does not contain that decision."""
    release, before = patcher.production, visible(patcher.production)
    patch, _, _ = patcher.rebuild(WINNER_ONLY, lower_distance)
    apply, _ = apply_and_revert_requests(release, patch)
    discarded = Decision(DISCARD, 0, 103, batch=0, at=datetime(2026, 12, 1, tzinfo=UTC), by="ann", why="a test")
    assert append_decisions(release.settings, "flights", [discarded]) == 1
    submit_request(release.settings, "flights", apply)
    with leases_released_at_exit():
        owner = open_active_releases(release.spark, release.settings, release.dataset, release.bronze)
        response = owner.answer(apply)
    assert "decision about rejected records" in response.refused
    assert response.remedy == f"headrace plan compare {patch.plan}"
    assert visible(release) == before


def test_recorded_patch_without_a_commit_is_dropped_when_its_build_is_gone(patcher: SlicePatcher) -> None:
    """Else no run and no request would be executed any more."""
    release = patcher.production
    with leases_released_at_exit():
        owner = open_active_releases(release.spark, release.settings, release.dataset, release.bronze)
        owner.begin_patch("replay-flights-9", PatchDirection.APPLY)
        with pytest.raises(Terminal, match="no complete build"):
            owner.finish_patch()
    assert not owner.is_patching
