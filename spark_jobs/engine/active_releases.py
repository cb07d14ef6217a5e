"""The live releases of a dataset: the one that readers see, and those kept up with bronze beside it.

Reads: bronze. Writes: the tables of each live release, the publication, `live.json`.
Guarantee: readers see one release or the other whole, at the same or a later batch; a release stays fresh until it is
retired, so that going back to it is a matter of moments.
After a crash: the publication says what is seen, `live.json` what else is kept up; an order not answered is obeyed.
Does not: build a release from the start (follow.py does that in a process of its own).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from include.catalog.dataset import Dataset, released_dataset
from include.errors import HeadraceError, Terminal
from include.paths import active_releases_path, patch_in_progress_path, patch_path, release_lease_path
from include.reading.amendments import amendments_size
from include.reading.publication import find_publication, publish
from include.settings import Settings
from include.state.atomic_files import write_atomically
from include.state.owner_requests import OwnerRequest, OwnerResponse, RequestKind, pending_request
from spark_jobs.engine.apply_patch import APPLY, REVERT, Patch, apply_patch, is_started
from spark_jobs.engine.compact_tables import compact_tables
from spark_jobs.engine.rebuild_slice import PlanFolder
from spark_jobs.engine.refine import (
    RunReport,
    last_epoch,
    next_run,
    publication_of,
    refine,
    refined_batch,
    unfinished_run,
)
from spark_jobs.engine.status_reporter import log_line
from spark_jobs.layers.release_tables import Release, open_release
from spark_jobs.storage.delta_table import OwnershipLost, Table
from spark_jobs.storage.failpoints import Step, pass_step
from spark_jobs.storage.lease import Lease, take_lease

PAUSE = 30.0
# Readers wait as long for what comes in meanwhile.
MAINTAINED_WITHIN = 20.0
WAYS = {RequestKind.APPLY_PATCH: APPLY, RequestKind.REVERT_PATCH: REVERT}


@dataclass
class ActiveRelease:
    """One release that this process owns; `not_before` (monotonic seconds): it failed, and is left alone until then."""

    release: Release
    lease: Lease
    not_before: float = 0.0

    @property
    def name(self) -> str:
        """The release's name."""
        return self.release.dataset.release

    def refine_next(
        self, settings: Settings, last: int, *, publishing: bool, most_rows: int | None = None
    ) -> RunReport | None:
        """Do the next run up to bronze batch `last`; None when there is none."""
        bounds = next_run(self.release, last, most_rows or settings.refine_records)
        if bounds is None:
            return None
        return refine(settings, self.release, *bounds, self.lease.epoch, publishing=publishing)


@dataclass
class ActiveReleases:
    """What a driver keeps up: `seen` by readers, and the others `beside` it."""

    settings: Settings
    spark: SparkSession
    bronze: Table
    published: ActiveRelease
    shadows: list[ActiveRelease] = field(default_factory=list)
    unavailable: list[str] = field(default_factory=list)
    """Releases that are to be kept up and could not be opened: they stay on the list for the next driver."""

    def catch_up_shadow(self) -> bool:
        """Bring a release beside the seen one on to where that is, by one run; return whether there was work.

        A failure is logged and rests for a while: nobody reads that release.
        """
        last = refined_batch(self.published.release)
        for live in list(self.shadows):
            if time.monotonic() < live.not_before:
                continue
            try:
                if live.refine_next(self.settings, last, publishing=False) is not None:
                    return True
            except OwnershipLost as error:
                self.shadows.remove(live)
                log_line(f"release {live.name} has another owner: {error.what}")
            except Exception as error:  # noqa: BLE001  (the seen release goes on, whatever it was)
                live.not_before = time.monotonic() + PAUSE
                log_line(f"release {live.name} beside the published one failed, tried again in {PAUSE:.0f} s", error)
        return False

    def execute(self, order: OwnerRequest) -> OwnerResponse:
        """Do what is asked, or say why not."""
        done: Mapping[str, Any] = {}
        try:
            done = self._do(order)
            refused = remedy = ""
        except HeadraceError as error:
            refused, remedy = error.what, error.remedy
        except Exception as error:  # noqa: BLE001  (an order that cannot be obeyed must not end the stream)
            log_line(f"the order of {order.requester} failed", error)
            refused, remedy = f"{type(error).__name__}: {error}".splitlines()[0][:300], "headrace status"
        return OwnerResponse(
            order.plan, order.kind, order.release, refused, refined_batch(self.published.release), remedy, done
        )

    def _do(self, order: OwnerRequest) -> Mapping[str, Any]:
        if order.kind == RequestKind.COMPACT:
            releases = [live.release for live in (self.published, *self.shadows)]
            return compact_tables(
                self.settings, self.spark, releases, MAINTAINED_WITHIN, is_owner=self.published.lease.is_held
            )
        if order.kind == RequestKind.PROMOTE:
            self.promote(order.release, lambda: pending_request(self.settings, self._dataset) == order)
        elif order.kind == RequestKind.RETIRE:
            self.retire(order.release)
        elif order.kind in WAYS:
            self.correct(order, lambda: pending_request(self.settings, self._dataset) == order)
        else:
            raise Terminal(f"{order.kind!r} is no order", "headrace plan list")
        return {}

    @property
    def _dataset(self) -> str:
        return self.published.release.dataset.name

    def promote(self, name: str, wanted: Callable[[], bool] = lambda: True) -> None:
        """Let readers see the release `name` from the batch on that they see now.

        `wanted` is asked again when all is ready: an order can be withdrawn meanwhile.
        """
        if name == self.published.name:
            return
        kept = next((live for live in self.shadows if live.name == name), None)
        fresh = kept or self._opened(name)
        try:
            catch_up_release(self.settings, fresh, self.published.release)
            if not wanted():
                raise Terminal(f"the order to show release {name} was withdrawn", "headrace plan list")
            others = [live for live in self.shadows if live is not fresh]
            # Before the publication moves: a crash in between must not leave the release from before to go stale.
            self._record_active([fresh, self.published, *others])
            publish(self.settings, publication_of(self.settings, fresh.release, refined_batch(fresh.release)))
        except BaseException:
            if kept is None:
                fresh.lease.release()
            raise
        self.shadows, self.published = [self.published, *others], fresh

    def retire(self, name: str) -> None:
        """Keep the release `name` up no longer; its tables stay."""
        if name == self.published.name:
            raise Terminal(f"release {name} is the one that readers see; it stays", "headrace plan rollback ID")
        for live in [live for live in self.shadows if live.name == name]:
            self.shadows.remove(live)
            live.lease.release()
        self.unavailable = [closed for closed in self.unavailable if closed != name]
        self._record_active([self.published, *self.shadows])

    def correct(self, order: OwnerRequest, wanted: Callable[[], bool]) -> None:
        """Put the rows that a plan has done again in the place of what readers see, or take that back.

        `wanted` is asked last: an order can be withdrawn meanwhile.
        """
        if order.release != self.published.name:
            what = f"plan {order.plan} is about release {order.release}, readers see {self.published.name}"
            raise Terminal(what, "headrace plan list")
        built = self._built(order.plan)
        if built["attempt"] != order.attempt:
            what = f"plan {order.plan} was built again after it was approved"
            raise Terminal(what, f"headrace plan compare {order.plan}")
        # A plan of before has no such word. Taking rows back judges nothing.
        judged_by = built.get("decided_until")
        if order.kind == RequestKind.APPLY_PATCH and judged_by not in (
            None,
            amendments_size(self.settings, self._dataset),
        ):
            what = f"something was decided about rejected records after plan {order.plan} was built"
            raise Terminal(what, f"headrace plan compare {order.plan}")
        # A run that was begun is finished first: a correction is made between two runs.
        while unfinished_run(self.published.release) is not None:
            self.published.refine_next(self.settings, refined_batch(self.published.release), publishing=True)
        if not wanted():
            raise Terminal(f"the order of plan {order.plan} was withdrawn", "headrace plan list")
        write_atomically(self._patch_marker, json.dumps({"plan": order.plan, "way": WAYS[order.kind]}))
        self.finish_patch()

    def _built(self, plan: str) -> dict[str, Any]:
        """Return what the plan's job said of the rows that it left."""
        path = patch_path(self.settings, self._dataset, self.published.name, plan) / "built.json"
        try:
            said: dict[str, Any] = json.loads(path.read_text("utf-8"))
            return said
        except FileNotFoundError as error:
            raise Terminal(f"plan {plan} is not built whole", f"headrace plan compare {plan}") from error

    def finish_patch(self) -> None:
        """Apply the correction that was begun, if one was; until then no other run may begin."""
        try:
            said = json.loads(self._patch_marker.read_text("utf-8"))
        except FileNotFoundError:
            return
        release = self.published.release
        folder = PlanFolder(patch_path(self.settings, self._dataset, self.published.name, said["plan"]))
        built = self._built(said["plan"])
        correction = Patch(said["plan"], folder, built["batch"], said["way"])
        try:
            others = [*(live.name for live in self.shadows), *self.unavailable]
            if built["filled"] and others:
                raise Terminal(f"release {others[0]} is kept fresh and would lack what bronze gets", "retire it first")
            apply_patch(release, correction, refined_batch(release), self.published.lease.epoch)
        except Exception:
            if not is_started(release, correction):
                self._patch_marker.unlink()
            raise
        publish(self.settings, publication_of(self.settings, release, refined_batch(release)))
        pass_step(Step.CORRECTION_PUBLISHED)
        self._patch_marker.unlink()

    @property
    def is_patching(self) -> bool:
        """Whether a correction was begun and is not finished."""
        return self._patch_marker.exists()

    @property
    def _patch_marker(self) -> Path:
        return patch_in_progress_path(self.settings, self._dataset, self.published.name)

    def _record_active(self, live: list[ActiveRelease]) -> None:
        """Write down which releases are kept up."""
        names = [*(one.name for one in live), *self.unavailable]
        write_atomically(active_releases_path(self.settings, self._dataset), json.dumps(list(dict.fromkeys(names))))

    def _opened(self, name: str) -> ActiveRelease:
        dataset = released_dataset(self.settings, self._dataset, name)
        return open_active_release(self.spark, self.settings, dataset, self.bronze)


def catch_up_release(settings: Settings, fresh: ActiveRelease, seen: Release) -> None:
    """Refine `fresh` until it holds what readers see; they wait for nothing meanwhile."""
    last = refined_batch(seen)
    while fresh.refine_next(settings, last, publishing=False) is not None:
        pass
    if refined_batch(fresh.release) < last:
        raise Terminal(f"release {fresh.name} is at batch {refined_batch(fresh.release)}, readers see {last}", "")
    refuse_incomplete(fresh.release, last)


def refuse_incomplete(release: Release, last: int) -> None:
    """A release that was built before bronze had a gap filled has never seen the records that came back."""
    writer = release.writer
    judged = sum(file.rows for table in (writer.silver, writer.rejected) for file in table.files())
    there = sum(file.rows for file in writer.bronze.files() if file.overlaps("_batch_id", 0, last))
    if judged != there:
        what = f"release {release.dataset.release} has {judged} of {there} records: a gap in bronze was filled since"
        raise Terminal(
            f"{what}; readers see what they saw", "change the folder, be it a comment, and plan the release again"
        )


def open_active_release(spark: SparkSession, settings: Settings, dataset: Dataset, bronze: Table) -> ActiveRelease:
    """Take the release's lease and open its tables; LeaseHeld when another process owns it."""
    lease = take_lease(
        release_lease_path(settings, dataset.name, dataset.release),
        f"release {dataset.release} of {dataset.name}",
        datetime.now(UTC),
    )
    try:
        release = open_release(spark, settings, dataset, bronze)
        return ActiveRelease(release, lease.raised(last_epoch(release) + 1))
    except BaseException:
        lease.release()
        raise


def open_active_releases(spark: SparkSession, settings: Settings, dataset: Dataset, bronze: Table) -> ActiveReleases:
    """Open the dataset's published release and those that were kept up beside it; one that cannot be is left out."""
    live = ActiveReleases(settings, spark, bronze, open_active_release(spark, settings, dataset, bronze))
    _finish_correction(live)
    for name in recorded_releases(settings, dataset.name):
        if name != dataset.release:
            try:
                live.shadows.append(live._opened(name))
            except Exception as error:  # noqa: BLE001  (a release that nobody sees must not keep production down)
                live.unavailable.append(name)
                log_line(f"release {name} is not kept up", error)
    return live


def _finish_correction(live: ActiveReleases) -> None:
    """One that was only intended is dropped when it cannot be made; one that was begun must be finished."""
    try:
        live.finish_patch()
    except HeadraceError as error:
        if live.is_patching:
            raise
        log_line(f"a correction was not made: {error.what}")


def recorded_releases(settings: Settings, dataset: str) -> list[str]:
    """Return the names of the releases that are kept up, the one that readers see first; none before the first plan."""
    try:
        return [str(name) for name in json.loads(active_releases_path(settings, dataset).read_text("utf-8"))]
    except FileNotFoundError:
        return []
    except (ValueError, TypeError) as error:
        path = active_releases_path(settings, dataset)
        log_line(f"{path} cannot be read; no shadow release is advanced", error)
        return []


def republish(settings: Settings, release: Release) -> None:
    """A crash between the last gold commit and the publication leaves readers a batch behind: move on."""
    done = refined_batch(release)
    published = find_publication(settings, release.dataset.name)
    if done >= 0 and (published is None or published.batch < done) and unfinished_run(release) is None:
        publish(settings, publication_of(settings, release, done))
