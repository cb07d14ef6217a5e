"""Active releases of a dataset: the published one, and shadow releases that advance with bronze, unpublished.

Readers see one release whole, at the same batch as before or a later one. A shadow release stays current until it is
retired, so a rollback takes one run at most. After a crash the publication names the published release, and
`active_releases.json` the shadow releases. A release is built from its start by `shadow_job.py`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from include.declare.dataset import Dataset, released_dataset
from include.ground.errors import Refused, Terminal
from include.ground.paths import release_lease_path
from include.ground.settings import Settings
from include.read.publication import publish
from include.read.rejected_records import decision_log_size
from include.state.json_file import StateFileUnreadable
from include.state.lease import Lease, take_lease
from include.state.release_files import PatchInProgress, PlanBuild, active_releases_file
from spark_jobs.backends.local.runs import UNPACED, NextRun, ValidatedRun, Validations
from spark_jobs.backends.release import (
    BronzeEnd,
    Release,
    chosen_backend,
    claim_tables,
    open_release,
    release_paths,
    tables_of,
)
from spark_jobs.history.apply_patch import Patch, apply_patch, is_started
from spark_jobs.history.rebuild_slice import PlanFolder
from spark_jobs.layers.silver_tables import first_complete_batch
from spark_jobs.stream.compaction import COMPACTION_SECONDS, CompactedTable, compact_tables, compactable_tables
from spark_jobs.stream.expiry import RetainedTables, expire_batches, retained_tables
from spark_jobs.stream.loading import Loads, sole_turn
from spark_jobs.stream.refine import RunReport, publication_of, refine, refresh_due, refresh_up_to
from spark_jobs.stream.requests import Owned, outdated_patch, withdrawn
from spark_jobs.tables.commit_log import take_over_tables
from spark_jobs.tables.delta_table import OwnershipLost, Table
from spark_jobs.tables.log_lines import log_line

SHADOW_RETRY_SECONDS = 30.0
CHECK_SECONDS = 0.2


@dataclass
class ActiveRelease:
    """A release that this process owns; `not_before` (monotonic seconds): no retry of a failed shadow before that."""

    release: Release
    lease: Lease
    not_before: float = 0.0
    check_at: float = 0.0
    """When (monotonic seconds) gold tables with an interval are checked again."""
    validated: ValidatedRun | None = None
    """The next run's records, validated during the last run."""
    has_failed: bool = False
    """Whether the last run failed: its retry validates no other run, which may need what is lacking, as disk space."""
    is_unpublished: bool = False
    """Whether a run or a refresh failed after some tables were committed, so that the publication is behind them."""

    @property
    def name(self) -> str:
        return self.release.dataset.release

    def refine_next(
        self,
        settings: Settings,
        last: int,
        *,
        publishing: bool,
        refreshing: bool = True,
        bronze_end: Callable[[], BronzeEnd] | None = None,
        validations: Validations = UNPACED,
    ) -> RunReport | None:
        """Execute the next run up to bronze batch `last`; return None when there is none.

        Without `refreshing` gold tables with an interval stay as they are. `bronze_end` returns bronze's end:
        with it, the records of the run after this one are validated meanwhile if they are many (layers/adr-0015), but
        not while a run that failed is retried. `validations` is notified of them.
        """
        most = settings.refine_records
        bounds = self.release.next_run(last, most, self.validated.batches if self.validated else None)
        if bounds is None:
            return None
        following = None
        if bronze_end is not None and not self.has_failed:
            following = self._following(most, bronze_end, validations)
        now = time.time() if refreshing else None
        self.has_failed = True
        try:
            report = refine(
                settings, self.release, *bounds, self.lease.epoch, publishing=publishing, now=now, following=following
            )
        except Exception:
            self.is_unpublished = True
            raise
        finally:
            self.validated = following.validated if following is not None else None
        self.has_failed = False
        if publishing:
            self.is_unpublished = False
        return report

    def _following(
        self, most_rows: int, bronze_end: Callable[[], BronzeEnd], validations: Validations
    ) -> NextRun | None:
        seen: BronzeEnd | None = None

        def bounds_after(batch: int) -> tuple[int, int] | None:
            # Asked again and again while the run is written, and the answer changes with bronze alone.
            nonlocal seen
            before, seen = seen, bronze_end()
            return None if seen == before else self.release.large_run(batch + 1, seen, most_rows)

        return self.release.backend.run_after(self.release.writer, self.validated, bounds_after, validations)

    def refresh(self, settings: Settings, *, publishing: bool) -> bool:
        """Refresh gold whose interval is over; publish it, and commits of a failed run; return whether any was."""
        if time.monotonic() < self.check_at:
            return False
        self.check_at = time.monotonic() + CHECK_SECONDS
        try:
            done = refresh_due(self.release, self.lease.epoch, time.time())
        except Exception:
            self.is_unpublished = True
            raise
        self.is_unpublished |= done
        last = self.release.refined_batch
        if self.is_unpublished and publishing and last >= 0:
            publish(settings, publication_of(settings, self.release, last))
            self.is_unpublished, done = False, True
        return done


@dataclass
class ActiveReleases(Owned):
    """The releases that an owner advances: the `published` one and its `shadows`."""

    settings: Settings
    spark: SparkSession
    bronze: Table
    published: ActiveRelease
    shadows: list[ActiveRelease] = field(default_factory=list)
    unavailable: list[str] = field(default_factory=list)
    """Shadow releases that could not be opened; they stay recorded for the next owner."""
    loads: Loads = field(init=False)

    def __post_init__(self) -> None:
        self.loads = Loads(self.settings, self.bronze, sole_turn(self.bronze))

    @property
    def all_releases(self) -> Sequence[ActiveRelease]:
        return (self.published, *self.shadows)

    @property
    def dataset(self) -> str:
        return self.published.release.dataset.name

    @property
    def advanced_names(self) -> list[str]:
        return [shadow.name for shadow in self.shadows]

    @property
    def shadow_names(self) -> list[str]:
        """Names of the shadow releases, also of those that could not be opened."""
        return [*self.advanced_names, *self.unavailable]

    @property
    def release_name(self) -> str:
        return self.published.name

    @property
    def batch(self) -> int:
        return self.published.release.refined_batch

    def compactable(self) -> Iterator[CompactedTable]:
        return compactable_tables(self.opened())

    def retained(self) -> RetainedTables:
        return retained_tables(self.settings, self.opened())

    def close(self) -> None:
        """Release the leases of the releases: other datasets may go on in this process."""
        for each in self.all_releases:
            each.lease.release()

    def opened(self) -> list[Release]:
        return [each.release for each in self.all_releases]

    def compact(self) -> Mapping[str, Any]:
        releases, owner = self.opened(), self.published.lease
        for each in expire_batches(self.settings, releases, datetime.now(UTC), owner.is_held):
            log_line(each.report)
        return compact_tables(self.settings, releases, COMPACTION_SECONDS, is_owner=owner.is_held)

    def rebuild_identities(self) -> Mapping[str, Any]:
        return {each.name: each.release.backend.rebuild_identities(each.release.writer) for each in self.all_releases}

    def load(self, release: str) -> Mapping[str, Any]:
        """Load for `loads.seconds`, then publish the batches where nothing else does: no release has their records yet.

        Raises Refused (`file-changed`), Transient also while bronze has no batch to follow.
        """
        files = released_dataset(self.settings, self.dataset, release).file_sets[-1]
        done = self.loads.advance(self.published.release, files)
        while (
            self.loads.is_alone and self.published.refine_next(self.settings, done.batch, publishing=True) is not None
        ):
            pass
        return asdict(done)

    def finish_runs(self) -> None:
        while self.published.release.unfinished_run is not None:
            self.published.refine_next(self.settings, self.batch, publishing=True)

    def refuse_decided(self, plan: str, built: PlanBuild) -> None:
        # Builds of earlier versions have None.
        if built.decided_until not in (None, decision_log_size(self.settings, self.dataset)):
            why = "a decision about rejected records was made after it was built"
            raise outdated_patch(plan, why, f"headrace plan compare {plan}")

    def apply_patch(self, recorded: PatchInProgress, folder: PlanFolder) -> None:
        """Commit a patch. Raises PatchOutdated, and Refused while a shadow would lack records."""
        plan, built = recorded.plan, self.read_built(recorded.plan)
        if built.filled and self.shadow_names:
            shadow = self.shadow_names[0]
            raise Refused(
                f"plan {plan} fills a gap in bronze, and shadow release {shadow} would lack its records; nothing was"
                " changed",
                "headrace plan list, headrace plan retire PLAN (the plan of that release), then the same command again",
                code="shadow-blocks-patch",
                plan=plan,
                shadow=shadow,
            )
        patch = Patch(plan, folder, built.batch, recorded.direction, built.reference)
        apply_patch(self.published.release, patch, self.batch, self.published.lease.epoch)

    def has_commit_of(self, recorded: PatchInProgress) -> bool:
        return is_started(self.published.release, recorded.plan, recorded.direction)

    def republish(self) -> None:
        publish(self.settings, publication_of(self.settings, self.published.release, self.batch))

    def advance_shadow(self) -> bool:
        """Advance one shadow release by one run towards the published batch; return whether there was work.

        A failure is logged and retried after SHADOW_RETRY_SECONDS: a shadow has no readers.
        """
        last = self.published.release.refined_batch
        for shadow in list(self.shadows):
            if time.monotonic() < shadow.not_before:
                continue
            try:
                ran = shadow.refine_next(self.settings, last, publishing=False) is not None
                if ran or shadow.refresh(self.settings, publishing=False):
                    return True
            except OwnershipLost as error:
                self.shadows.remove(shadow)
                log_line(f"shadow release {shadow.name} has another owner, this driver drops it: {error.what}")
            except Exception as error:  # noqa: BLE001  (whatever it is, the published release continues)
                shadow.not_before = time.monotonic() + SHADOW_RETRY_SECONDS
                log_line(f"shadow release {shadow.name} failed; retry in {SHADOW_RETRY_SECONDS:.0f} s", error)
        return False

    def promote(self, name: str, is_pending: Callable[[], bool] = lambda: True) -> None:
        """Publish release `name` at the published batch or a later one; the release published before becomes a shadow.

        `is_pending` is evaluated last. Raises LeaseHeld, Refused when it is false, Terminal for an unfit release.
        """
        if name == self.published.name:
            return
        shadow = next((shadow for shadow in self.shadows if shadow.name == name), None)
        promoted = shadow or self._open(name)
        try:
            catch_up_release(self.settings, promoted, self.published.release)
            if not is_pending():
                raise withdrawn(f"release {name}")
            others = [other for other in self.shadows if other is not promoted]
            # Recorded first: after a crash in between, the release published before is still advanced.
            self._record([promoted, self.published, *others])
            publish(self.settings, publication_of(self.settings, promoted.release, promoted.release.refined_batch))
        except BaseException:
            if shadow is None:
                promoted.lease.release()
            raise
        self.shadows, self.published = [self.published, *others], promoted

    def retire(self, name: str) -> None:
        """Stop advancing the shadow release `name`; its tables stay."""
        if name == self.published.name:
            raise Terminal(f"release {name} is published and cannot be retired", "headrace plan rollback PLAN")
        for shadow in [shadow for shadow in self.shadows if shadow.name == name]:
            self.shadows.remove(shadow)
            shadow.lease.release()
        self.unavailable = [other for other in self.unavailable if other != name]
        self._record([self.published, *self.shadows])

    def open_shadow(self, name: str) -> None:
        """Open the shadow release `name`; one that cannot be opened is logged and stays recorded."""
        try:
            self.shadows.append(self._open(name))
        except Exception as error:  # noqa: BLE001  (an unpublished release must not keep production down)
            self.unavailable.append(name)
            log_line(f"shadow release {name} cannot be opened; it is not advanced until the driver restarts", error)

    def _record(self, active: list[ActiveRelease]) -> None:
        names = [*(release.name for release in active), *self.unavailable]
        active_releases_file(self.settings, self.dataset).write(list(dict.fromkeys(names)))

    def _open(self, name: str) -> ActiveRelease:
        dataset = released_dataset(self.settings, self.dataset, name)
        return open_active_release(self.spark, self.settings, dataset, self.bronze)


def catch_up_release(settings: Settings, shadow: ActiveRelease, published: Release) -> None:
    """Refine `shadow` up to the published batch, all of its gold tables. Raises Terminal when it lacks records."""
    last = published.refined_batch
    while shadow.refine_next(settings, last, publishing=False) is not None:
        pass
    if shadow.release.refined_batch < last:
        batch = shadow.release.refined_batch
        raise Terminal(
            f"release {shadow.name} is at batch {batch}, batch {last} is published; the publication is unchanged",
            "headrace audit",
            code="shadow-behind",
            release=shadow.name,
            batch=batch,
        )
    refuse_incomplete(shadow.release, last)
    refresh_up_to(shadow.release, shadow.lease.epoch, {}, time.time())


def refuse_incomplete(release: Release, last: int) -> None:
    """Raise Terminal unless silver and rejected have bronze's records up to batch `last`, expired ones aside."""
    writer = release.writer
    first = first_complete_batch(writer)
    rows = sum(table.count_rows(first, last) for table in (writer.silver, writer.rejected))
    expected = writer.records.count_rows(first, last)
    if rows != expected:
        name = release.dataset.release
        raise Terminal(
            f"release {name} has {rows} of {expected} records: a gap in bronze was filled after it was built; the"
            " publication is unchanged",
            "change the dataset's folder (a comment is enough), then headrace release plan",
            code="release-incomplete",
            release=name,
            rows=rows,
            expected=expected,
        )


def open_active_release(spark: SparkSession, settings: Settings, dataset: Dataset, bronze: Table) -> ActiveRelease:
    """Take the release's lease and open its tables. Raises LeaseHeld when another process owns them."""
    lease = take_lease(
        settings,
        release_lease_path(settings, dataset.name, dataset.release),
        f"release {dataset.release} of {dataset.name}",
        datetime.now(UTC),
    )
    try:
        take_over_tables(release_paths(settings, dataset), lease.epoch, leases_expire=bool(settings.lease_url))
        # One thread plans all that a release needs to open, for seconds; this is built by another meanwhile.
        finish_opening = chosen_backend(spark, settings).begin_opening(dataset)
        release = open_release(spark, settings, dataset, bronze)
        finish_opening(release.writer)
        if settings.is_power_safe:
            # New tables, and what a process that crashed, or ran without `power`, has committed.
            os.sync()
        own = [table for table in tables_of([release]) if table is not bronze]
        lease = claim_tables(own, lease.with_minimum_epoch(release.last_epoch + 1))
        return ActiveRelease(release, lease)
    except BaseException:
        lease.release()
        raise


def open_active_releases(spark: SparkSession, settings: Settings, dataset: Dataset, bronze: Table) -> ActiveReleases:
    """Open and return the published release, its patch finished if one was begun, and the recorded shadow releases."""
    active = ActiveReleases(settings, spark, bronze, open_active_release(spark, settings, dataset, bronze))
    with ExitStack() as failed:
        failed.callback(active.close)
        active.resume_patch()
        for name in recorded_releases(settings, dataset.name):
            if name != dataset.release:
                active.open_shadow(name)
        failed.pop_all()
    return active


def recorded_releases(settings: Settings, dataset: str) -> list[str]:
    """Return the names of the active releases, the published one first; none before the first plan."""
    try:
        return active_releases_file(settings, dataset).read() or []
    except StateFileUnreadable as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        log_line(f"{error.what}; none is advanced", error)
        return []
