"""Executes owner requests of a derived dataset: publish another release, stop maintaining one, patch, compact.

Reads: the request. Writes: the publication, and what the other release would publish.
Guarantee: executing a request twice has the effect of once; a release is advanced before it is published.
After a crash: the request stays pending; an advanced release stays advanced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from include.declare.derived_dataset import released_derived
from include.ground.errors import Terminal
from include.read.publication import find_publication, find_shadow_publication, publish, save_shadow_publication
from include.state.owner_requests import OwnerRequest, OwnerResponse, RequestKind
from spark_jobs.stream.derived_patch import finish_derived_patch, patch_derived
from spark_jobs.stream.derived_run import DerivedRelease
from spark_jobs.stream.derived_upkeep import compact_derived
from spark_jobs.stream.execute_request import COMPACTION_SECONDS, attempted


class RequestNotKnown(Terminal):
    """A derived dataset has no identities, so it cannot execute such a request."""

    def __init__(self, dataset: str, kind: str) -> None:
        super().__init__(f"{dataset} is derived: it executes no {kind} request; nothing was done", "headrace status")
        self.dataset, self.kind = dataset, kind


def execute_derived(release: DerivedRelease, request: OwnerRequest) -> tuple[DerivedRelease, OwnerResponse]:
    """Execute a request; return the release that is published then, and the response."""
    executed, refusal = attempted(request, lambda: _execute(release, request))
    after, done = executed or (release, {})
    published = find_publication(release.settings, release.derived.name)
    batch = published.batch if published else -1
    return after, OwnerResponse(request.plan, request.kind, request.release, refusal.why, batch, refusal.remedy, done)


def _execute(release: DerivedRelease, request: OwnerRequest) -> tuple[DerivedRelease, Mapping[str, Any]]:
    finish_derived_patch(release)
    if request.kind in (RequestKind.APPLY_PATCH, RequestKind.REVERT_PATCH):
        patch_derived(release, request)
        return release, {}
    if request.kind is RequestKind.PROMOTE:
        return promoted(release, request.release), {}
    if request.kind is RequestKind.COMPACT:
        return release, {**compact_derived(release, release.published_run, COMPACTION_SECONDS)}
    if request.kind is not RequestKind.RETIRE:
        raise RequestNotKnown(release.derived.name, request.kind)
    return release, {}


def promoted(release: DerivedRelease, name: str) -> DerivedRelease:
    """Advance another release to the current sources and publish it; return it. The old one is kept for a rollback."""
    if release.derived.release == name:
        return release
    settings, dataset = release.settings, release.derived.name
    derived = released_derived(settings, dataset, name)
    other = DerivedRelease(settings, derived, release.spark, release.epoch, is_published=False)
    _catch_up(other)
    old, new = find_publication(settings, dataset), find_shadow_publication(settings, dataset, name)
    assert new is not None
    if old is not None:
        save_shadow_publication(settings, old)
    publish(settings, new)
    return replace(other, is_published=True)


def _catch_up(release: DerivedRelease) -> None:
    """Advance a release to the sources as they are now.

    While records arrive, these are replaced in less time than a run takes: what comes meanwhile is for the loop.
    """
    release.finish_run()
    if (run := release.next_run()) is not None:
        release.execute(run)
