"""Recovers the publication at a driver's start: recreates a missing one, moves it to the batch that all tables have.

Reads: the release's tables. Writes: the publication, and `active_releases.json` when there is none.
Guarantee: readers see one release whole, at a batch that all of its tables have.
After a crash: the next start does the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from include.ground.delta_log import LOG
from include.ground.errors import Terminal
from include.ground.paths import folder_name, identities_path, warehouse
from include.ground.settings import Settings
from include.read.publication import Publication, find_publication, publish, replace_publication
from include.state.release_files import active_releases_file
from spark_jobs.layers.release import Release, refined_batch, unfinished_run
from spark_jobs.stream.active_releases import recorded_releases
from spark_jobs.stream.interval_refresh import interval_tables
from spark_jobs.stream.release_publication import publication_of
from spark_jobs.tables.batches import last_run
from spark_jobs.tables.commit_log import log_tail
from spark_jobs.tables.identity_index import index_file


class ReleaseAmbiguous(Terminal):
    """The publication is missing, and several releases have tables: which one was published is not recorded."""

    def __init__(self, settings: Settings, dataset: str, releases: Sequence[str]) -> None:
        path = active_releases_file(settings, dataset).path
        super().__init__(
            f"{dataset}: there is no publication, and releases {', '.join(releases)} have tables; nothing was read",
            f'echo \'["RELEASE"]\' > "{path}", then headrace up {dataset}   (publishes that release again)',
        )
        self.dataset, self.releases = dataset, tuple(releases)


def last_active_release(settings: Settings, dataset: str) -> str | None:
    """Return the release to publish where there is no publication; None when no release has a batch.

    Never the release of the folder while another one has tables: it was neither compared nor approved. Raises
    ReleaseAmbiguous.
    """
    recorded = recorded_releases(settings, dataset)
    if recorded:
        return recorded[0]
    logs = sorted(warehouse(settings).glob(f"{folder_name('dataset', dataset)}/*/silver/{LOG}"))
    found = [log.parent for log in logs if last_run(log.parent, log_tail(log.parent).whole)[1] >= 0]
    if len(found) > 1:
        raise ReleaseAmbiguous(settings, dataset, [path.parent.name for path in found])
    return found[0].parent.name if found else None


class PublishedTablesLost(Terminal):
    """Batch `published` is published, and the release's tables have no batch at all."""

    def __init__(self, dataset: str, release: str, published: int) -> None:
        super().__init__(
            f"{dataset}: batch {published} is published, and the tables of release {release} are empty or gone;"
            " the publication is unchanged",
            "restore the tables from a backup",
        )
        self.dataset, self.release, self.published = dataset, release, published


def republish(settings: Settings, release: Release, bronze_version: int | None = None) -> str | None:
    """Publish the last batch that all tables have; return a sentence when they lost what was published.

    `bronze_version`: bronze's version when this process started, if it has committed to it since.

    A crash after the last gold commit leaves the publication behind. A power cut can leave it ahead, since it alone is
    synced: the tables have lost their last commits. Raises CommitsLost, PublishedTablesLost.
    """
    name, done, unfinished = release.dataset.name, refined_batch(release), unfinished_run(release)
    published = find_publication(settings, name)
    event = None
    if published is not None and published.release == release.dataset.release:
        event = _loss(release, published, done, bronze_version)
    if event is not None:
        # It is not synced either, and is derived from the tables.
        index_file(identities_path(settings, name, release.dataset.release)).remove()
        replace_publication(settings, publication_of(settings, release, done))
    elif done >= 0 and unfinished is None and _is_behind(settings, release, published, done):
        publish(settings, publication_of(settings, release, done))
    record = active_releases_file(settings, name)
    if published is not None and not record.path.exists():
        # Names the release if publication.json is deleted while another release has tables.
        record.write([release.dataset.release])
    return event


def _is_behind(settings: Settings, release: Release, published: Publication | None, done: int) -> bool:
    """Whether a crash left the publication behind batch `done`, or behind a refresh of gold tables with an interval."""
    if published is None or published.batch < done:
        return True
    names = [target.table.spec.name for target in interval_tables(release)]
    if not names or published.release != release.dataset.release:
        return False
    current = publication_of(settings, release, done).tables
    return any(current[name] != published.tables.get(name) for name in names)


def _loss(release: Release, published: Publication, done: int, bronze_version: int | None) -> str | None:
    """Return which published commits the tables, which have batch `done`, have lost; None for none."""
    if published.batch > done:
        if done < 0:
            raise PublishedTablesLost(published.dataset, published.release, published.batch)
        return (
            f"the publication was rolled back from batch {published.batch} to {done}: the tables lost the later"
            " batches, as after a power cut; they are refined again"
        )
    writer = release.writer
    tables = [writer.bronze, writer.silver, writer.rejected, *(target.table for target in release.gold)]
    heads = {table.spec.name: table.version for table in tables}
    if bronze_version is not None:
        heads[writer.bronze.spec.name] = bronze_version
    lost = [name for name, table in published.tables.items() if table.version > heads.get(name, table.version)]
    if not lost:
        return None
    return (
        f"{', '.join(lost)} lost the last patch of a plan, as after a power cut, and other tables may have it: headrace"
        f" audit --dataset {published.dataset}, then headrace plan list and the same plan again"
    )
