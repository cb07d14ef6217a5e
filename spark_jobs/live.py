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
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from include.catalog.dataset import Dataset, released_dataset
from include.errors import HeadraceError, Terminal
from include.places import live_path, release_lease_path
from include.reading.publication import find_publication, publish
from include.settings import Settings
from include.supervision.orders import PROMOTE, Answer, Order
from include.supervision.spawned import write_atomically
from spark_jobs.layers.release import Release, open_release
from spark_jobs.lease import Lease, take_lease
from spark_jobs.refine import RunReport, last_epoch, next_run, publication_of, refine, refined_batch, unfinished_run
from spark_jobs.tables import Table
from spark_jobs.telling import log

PAUSE = 30.0


@dataclass
class Live:
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
class LiveReleases:
    """What a driver keeps up: `seen` by readers, and the others `beside` it."""

    settings: Settings
    spark: SparkSession
    bronze: Table
    seen: Live
    beside: list[Live] = field(default_factory=list)

    def follow_next(self) -> bool:
        """Bring a release beside the seen one on to where that is, by one run; return whether there was work.

        A failure is logged and rests for a while: nobody reads that release.
        """
        last = refined_batch(self.seen.release)
        for live in self.beside:
            if time.monotonic() < live.not_before:
                continue
            try:
                if live.refine_next(self.settings, last, publishing=False) is not None:
                    return True
            except Exception as error:  # noqa: BLE001  (the seen release goes on, whatever it was)
                live.not_before = time.monotonic() + PAUSE
                log(f"release {live.name} beside the published one failed, tried again in {PAUSE:.0f} s", error)
        return False

    def obey(self, order: Order) -> Answer:
        """Do what is asked, or say why not."""
        try:
            self.promote(order.release) if order.kind == PROMOTE else self.retire(order.release)
            refused = ""
        except HeadraceError as error:
            refused = error.what
        except Exception as error:  # noqa: BLE001  (an order that cannot be obeyed must not end the stream)
            log(f"the order of plan {order.plan} failed", error)
            refused = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return Answer(order.plan, order.kind, order.release, refused, refined_batch(self.seen.release))

    def promote(self, name: str) -> None:
        """Let readers see the release `name` from the batch on that they see now."""
        if name == self.seen.name:
            return
        fresh = next((live for live in self.beside if live.name == name), None) or self._opened(name)
        if fresh not in self.beside:
            self.beside.append(fresh)
        keep_live(self.settings, self.seen.release.dataset.name, [self.seen, *self.beside])
        bring_up(self.settings, fresh, self.seen.release)
        publish(self.settings, publication_of(self.settings, fresh.release, refined_batch(fresh.release)))
        self.beside = [self.seen, *[live for live in self.beside if live is not fresh]]
        self.seen = fresh

    def retire(self, name: str) -> None:
        """Keep the release `name` up no longer; its tables stay."""
        if name == self.seen.name:
            raise Terminal(f"release {name} is the one that readers see; it stays", "headrace plan rollback ID")
        for live in [live for live in self.beside if live.name == name]:
            self.beside.remove(live)
            live.lease.release()
        keep_live(self.settings, self.seen.release.dataset.name, [self.seen, *self.beside])

    def _opened(self, name: str) -> Live:
        dataset = released_dataset(self.settings, self.seen.release.dataset.name, name)
        return open_live(self.spark, self.settings, dataset, self.bronze)


def bring_up(settings: Settings, fresh: Live, seen: Release) -> None:
    """Refine `fresh` until it holds what readers see; they wait for nothing meanwhile."""
    last = refined_batch(seen)
    while fresh.refine_next(settings, last, publishing=False) is not None:
        pass
    if refined_batch(fresh.release) < last:
        raise Terminal(f"release {fresh.name} is at batch {refined_batch(fresh.release)}, readers see {last}", "")


def open_live(spark: SparkSession, settings: Settings, dataset: Dataset, bronze: Table) -> Live:
    """Take the release's lease and open its tables; LeaseHeld when another process owns it."""
    lease = take_lease(
        release_lease_path(settings, dataset.name, dataset.release),
        f"release {dataset.release} of {dataset.name}",
        datetime.now(UTC),
    )
    release = open_release(spark, settings, dataset, bronze)
    return Live(release, lease.raised(last_epoch(release) + 1))


def open_all(spark: SparkSession, settings: Settings, dataset: Dataset, bronze: Table) -> LiveReleases:
    """Open the dataset's published release and those that were kept up beside it; one that cannot be is left out."""
    live = LiveReleases(settings, spark, bronze, open_live(spark, settings, dataset, bronze))
    for name in kept_live(settings, dataset.name):
        if name != dataset.release:
            try:
                live.beside.append(live._opened(name))
            except HeadraceError as error:
                log(f"release {name} is not kept up: {error.what}")
    return live


def kept_live(settings: Settings, dataset: str) -> list[str]:
    """Return the names of the releases that are kept up, the published one among them; none before the first plan."""
    try:
        found = json.loads(live_path(settings, dataset).read_text("utf-8"))
    except FileNotFoundError:
        return []
    return [str(name) for name in found]


def keep_live(settings: Settings, dataset: str, live: list[Live]) -> None:
    """Write down which releases are kept up."""
    write_atomically(live_path(settings, dataset), json.dumps([one.name for one in live]))


def repeat_publication(settings: Settings, release: Release) -> None:
    """A crash between the last gold commit and the publication leaves readers a batch behind: move on."""
    done = refined_batch(release)
    published = find_publication(settings, release.dataset.name)
    if done >= 0 and (published is None or published.batch < done) and unfinished_run(release) is None:
        publish(settings, publication_of(settings, release, done))
