"""What a driver repairs at its start: tables that lost commits to a power cut, checkpoint, publication (adr-0005).

Tables are rolled back to the last state that bronze, the tables, the checkpoint and Kafka share; log files are moved
aside, never deleted. A missing publication is written again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote

from include.declare.dataset import Dataset, released_dataset
from include.ground.delta_log import LOG, LogDamaged, commits_descending, last_run, read_commit
from include.ground.errors import Terminal
from include.ground.kafka import log_end_offsets, log_start_offsets, topic_id
from include.ground.paths import (
    bronze_path,
    checkpoint_path,
    folder_name,
    identities_path,
    release_lease_path,
    removed_commits_path,
    warehouse,
)
from include.ground.settings import Settings
from include.read.publication import Publication, find_publication, publish, replace_publication
from include.state.lease import take_lease
from include.state.release_files import active_releases_file
from spark_jobs.backends.local.identity_index import index_file
from spark_jobs.backends.release import Release, are_one_run_apart, release_paths
from spark_jobs.layers.bronze import bronze_spec
from spark_jobs.stream.active_releases import recorded_releases
from spark_jobs.stream.preflight import (
    BronzeHead,
    CheckpointAhead,
    CheckpointMissing,
    OffsetsExpired,
    RecordsReplaced,
    TablesDisagree,
    bronze_head_at,
    refuse_lost_records,
    refuse_replaced_records,
    validated_generation,
)
from spark_jobs.stream.refine import publication_of
from spark_jobs.tables.checkpoint import (
    CheckpointUnusable,
    Generation,
    OffsetLogDamaged,
    read_generation,
    write_generation,
)
from spark_jobs.tables.commit_log import CHECKED, LogTail, log_tail, move_files, obsolete_files, oldest_version
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.log_lines import log_line


def last_active_release(settings: Settings, dataset: str) -> str | None:
    """Return the release to publish where there is no publication; None when no release has a batch.

    Never the release of the folder while another one has tables: it was neither compared nor approved. Raises
    Terminal (`release-ambiguous`).
    """
    recorded = recorded_releases(settings, dataset)
    if recorded:
        return recorded[0]
    logs = sorted(warehouse(settings).glob(f"{folder_name('dataset', dataset)}/*/silver/{LOG}"))
    found = [log.parent for log in logs if last_run(log.parent, log_tail(log.parent).whole)[1] >= 0]
    if len(found) > 1:
        releases, path = [path.parent.name for path in found], active_releases_file(settings, dataset).path
        raise Terminal(
            f"{dataset}: there is no publication, and releases {', '.join(releases)} have tables: which one was"
            " published is not recorded; nothing was read",
            f'echo \'["RELEASE"]\' > "{path}", then headrace up {dataset}   (publishes that release again)',
            code="release-ambiguous",
            dataset=dataset,
            releases=releases,
        )
    return found[0].parent.name if found else None


def republish(settings: Settings, release: Release, bronze_version: int | None = None) -> str | None:
    """Publish the last batch that all tables have; return a sentence when they lost what was published.

    `bronze_version`: bronze's version when this process started, if it has committed to it since.

    A crash after the last gold commit leaves the publication behind. A power cut can leave it ahead, since it alone is
    synced: the tables have lost their last commits. Raises Terminal (`commits-lost`, `published-tables-lost`).
    """
    name, done, unfinished = release.dataset.name, release.refined_batch, release.unfinished_run
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
    names = [target.table.spec.name for target in release.interval_tables]
    if not names or published.release != release.dataset.release:
        return False
    current = publication_of(settings, release, done).tables
    return any(current[name] != published.tables.get(name) for name in names)


def _loss(release: Release, published: Publication, done: int, bronze_version: int | None) -> str | None:
    """Return which published commits the tables, which have batch `done`, have lost; None for none."""
    if published.batch > done:
        if done < 0:
            raise Terminal(
                f"{published.dataset}: batch {published.batch} is published, and the tables of release"
                f" {published.release} are empty or gone; the publication is unchanged",
                "restore the tables from a backup",
                code="published-tables-lost",
                dataset=published.dataset,
                release=published.release,
                published=published.batch,
            )
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


def next_generation(
    dataset: Dataset, folder: Path, bronze: Table, head: BronzeHead | None, bootstrap: str, accept_loss: bool
) -> Generation:
    """Return the generation after all known ones, from bronze's end. Raises OffsetsExpired as `next_offsets` does."""
    topic = dataset.pipeline.topic
    start, lost = next_offsets(dataset, head, bootstrap, accept_loss)
    number = 1 + max(_known_numbers(dataset.name, folder, head), default=0)
    base = head.batch + 1 if head else 0
    return Generation(number, base, start, topic, topic_id(bootstrap, topic), bronze.table_id, lost)


def next_offsets(
    dataset: Dataset, head: BronzeHead | None, bootstrap: str, accept_loss: bool
) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
    """Return the next offset by partition, and the ranges that Kafka has expired. Raises OffsetsExpired for those
    unless the loss is accepted. A partition that bronze does not know was added after bronze's last batch.
    """
    topic = dataset.pipeline.topic
    first = log_start_offsets(bootstrap, topic)
    start = dict.fromkeys(first, 0) | dict(head.ends) if head else first
    lost = {p: (start[p], first[p]) for p in first if start[p] < first[p]}
    if lost and not accept_loss:
        raise OffsetsExpired(dataset.name, topic, lost)
    return start | {p: end for p, (_, end) in lost.items()}, lost


def _known_numbers(dataset: str, folder: Path, head: BronzeHead | None) -> list[int]:
    found = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
    try:
        known = read_generation(folder, dataset)
        found += [known.number] if known else []
    except CheckpointUnusable:
        pass
    committed = re.fullmatch(rf"{re.escape(dataset)}/bronze/(\d+)", head.app_id) if head else None
    return found + ([int(committed[1])] if committed else [])


def current_dataset(settings: Settings, name: str, before: Callable[[Settings, str], Dataset]) -> Dataset:
    """Return the dataset as the published release declares it; `before` the first publication, as its folder does."""
    publication = find_publication(settings, name)
    # If publication.json was deleted, the last active release is published again.
    release = publication.release if publication else last_active_release(settings, name)
    return released_dataset(settings, name, release) if release else before(settings, name)


class PatchBlocksRollback(Terminal):
    """The rollback would remove the patch of `plan`, which other tables may have."""

    def __init__(self, table: str, plan: str) -> None:
        super().__init__(
            f"{table}: the commits to remove include the patch of plan {plan}; nothing was changed",
            "restore the tables from a backup, or build the release again: headrace release plan",
        )
        self.table, self.plan = table, plan


@dataclass(frozen=True)
class TableEnd:
    """The end of a table's log, `run` the batches of the last run in its whole part, and the version to `keep`."""

    tail: LogTail
    run: tuple[int, int]
    keep: int


@dataclass(frozen=True)
class Rollback:
    """The log files to remove, by table (path below the warehouse), and the version that `bronze` goes back to.

    `span`: between the oldest readable commit to remove and the newest commit of all. `indexes`: folders of the
    releases' identity indexes, which are derived again; a power cut may have damaged them.
    """

    files: dict[str, list[Path]]
    bronze: int
    indexes: tuple[Path, ...]
    bronze_table: Path
    span: timedelta

    def sentences(self, folder: Path) -> list[str]:
        """Return what is removed, one line for each table, and where it goes."""
        lines = ["found: commits of some tables are lost or cut short, as after a power cut"]
        lines += [f"remedy: remove from the log of {table}: {_names(files)}" for table, files in self.files.items()]
        return [*lines, f"the removed files go to {folder}; their batches are read and refined again"]

    def execute(self, folder: Path) -> None:
        for index in self.indexes:
            index_file(index).remove()
        root = self.bronze_table.parents[1]
        _link_records(self.bronze_table, self.files.get(str(self.bronze_table.relative_to(root)), []), folder)
        for table, files in self.files.items():
            move_files(files, folder / table)


def _link_records(bronze: Path, removed: list[Path], folder: Path) -> None:
    """Keep the records of removed commits: Kafka may have lost them."""
    for version in (int(file.stem) for file in removed if file.suffix == ".json"):
        with suppress(LogDamaged):
            for file in read_commit(bronze, version).added:
                kept = folder / "records" / file.path
                kept.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError, FileExistsError):
                    os.link(bronze / unquote(file.path), kept)


def _names(files: list[Path]) -> str:
    names = sorted(path.name for path in files)
    return ", ".join(names) if len(names) <= 4 else f"{names[0]} to {names[-1]} ({len(names)} files)"


def planned_rollback(
    settings: Settings, dataset: str, bronze_version: int | None = None, checked: int = CHECKED
) -> Rollback | None:
    """Return the rollback that the dataset's tables need, None when they need none. Raises PatchBlocksRollback.

    Tables in a store keep each commit that it acknowledged.

    `bronze_version`: bronze goes back to it or an earlier one. `checked`: commits that are checked in each table.
    """
    path = bronze_path(settings, dataset)
    if settings.stores_tables or not (path / LOG).is_dir():
        return None
    bronze = table_end(path, checked)
    if bronze_version is not None and bronze_version < bronze.keep:
        _refuse_patches(path, bronze_version, bronze.keep)
        bronze = replace(bronze, run=last_run(path, bronze_version), keep=bronze_version)
    ends, releases = [bronze], release_names(settings, dataset)
    for release in releases:
        own = [
            table_end(path, checked) for path in release_paths(settings, released_dataset(settings, dataset, release))
        ]
        ends += _rolled_back(own, bronze.run[1])
    root = warehouse(settings)
    files = {str(end.tail.table.relative_to(root)): obsolete_files(end.tail, end.keep) for end in ends}
    found = {table: removed for table, removed in files.items() if removed}
    indexes = tuple(identities_path(settings, dataset, release) for release in releases)
    removing = [end for end in ends if end.keep < end.tail.whole]
    since = min((_timestamp(end.tail.table, end.keep + 1) for end in removing), default=None)
    until = max(_timestamp(end.tail.table, end.tail.whole) for end in ends)
    return Rollback(found, bronze.keep, indexes, path, until - since if since else timedelta()) if found else None


def _timestamp(table: Path, version: int) -> datetime:
    milliseconds = read_commit(table, version).timestamp_ms if version >= 0 else 0
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def release_names(settings: Settings, dataset: str) -> list[str]:
    """Return the names of the published release and of the active ones."""
    publication = find_publication(settings, dataset)
    published = publication.release if publication else last_active_release(settings, dataset)
    return list(dict.fromkeys([*filter(None, [published]), *recorded_releases(settings, dataset)]))


def _refuse_patches(path: Path, keep: int, last: int) -> None:
    for version in range(last, keep, -1):
        metadata = read_commit(path, version).metadata or {}
        if "plan" in metadata:
            raise PatchBlocksRollback(str(path), metadata["plan"])


def table_end(path: Path, checked: int = CHECKED) -> TableEnd:
    """Return the end of a table's log; only what follows its whole part is to be removed."""
    if not (path / LOG).is_dir():
        return TableEnd(LogTail(path, -1, -1, ()), (-1, -1), -1)
    tail = log_tail(path, checked)
    return TableEnd(tail, last_run(path, tail.whole), tail.whole)


def _rolled_back(ends: Sequence[TableEnd], bronze: int) -> list[TableEnd]:
    """Return a release's ends, rolled back where they are more than one run apart, or ahead of `bronze`'s batch."""
    silver, batches = ends[0], [end.run[1] for end in ends]
    if silver.run[1] <= bronze and are_one_run_apart(silver.run, batches):
        return list(ends)
    last = _run_end(silver, min(bronze, *batches))
    return [replace(end, keep=_version_of(end, last)) for end in ends if end.tail.last >= 0]


def _run_end(silver: TableEnd, limit: int) -> int:
    """Return the last batch of the last run that ends at or before batch `limit`; all tables had the same runs."""
    version = silver.tail.whole
    while (run := last_run(silver.tail.table, version))[1] > limit:
        version -= 1
    return run[1]


def _version_of(end: TableEnd, batch: int) -> int:
    """Return the version before the first commit of a later batch."""
    keep = end.tail.whole
    for commit in commits_descending(end.tail.table, end.tail.whole):
        metadata = commit.metadata or {}
        if "plan" in metadata:
            raise PatchBlocksRollback(str(end.tail.table), metadata["plan"])
        if "batches" in metadata:
            if metadata["batches"][1] <= batch:
                break
            keep = commit.version - 1
    return keep


AT_START = 100
"""Commits of each table that every start checks: those of the last minute, at more than one a second."""
LONGEST = timedelta(minutes=10)
"""Systems write files back within a minute; what is older was lost for another reason, and a person decides."""


def roll_back_tables(settings: Settings, dataset: Dataset, bootstrap: str, now: datetime) -> str | None:
    """Roll the tables back to the last batch that they and Kafka share; return a sentence, None when nothing was lost.

    Losses too old for a power cut are not rolled back; preflight refuses them. Raises PatchBlocksRollback,
    OffsetsExpired.
    """
    path, name = bronze_path(settings, dataset.name), dataset.name
    if settings.stores_tables or not (path / LOG).is_dir():
        return None
    shared = _shared_version(settings, dataset, bootstrap)
    if planned_rollback(settings, name, shared, AT_START) is None:
        return None
    rollback = planned_rollback(settings, name, shared)
    if rollback is None:
        return None
    head = bronze_head_at(path, rollback.bronze)
    if rollback.span > LONGEST or head is None:
        log_line(f"{name}: tables lost commits of more than {LONGEST.seconds // 60} minutes; not rolled back")
        return None
    next_offsets(dataset, head, bootstrap, accept_loss=False)
    folder = removed_commits_path(settings, name) / now.strftime("%Y%m%dT%H%M%SZ")
    with ExitStack() as leases:
        take_release_leases(leases, settings, name, now)
        rollback.execute(folder)
    tables = ", ".join(rollback.files)
    return f"rolled back to bronze batch {head.batch} or before, as after a power cut: {tables}; removed: {folder}"


def take_release_leases(leases: ExitStack, settings: Settings, name: str, now: datetime) -> None:
    """Take the leases of the published release and the active ones, until the stack ends. Raises LeaseHeld."""
    for release in release_names(settings, name):
        lease = take_lease(settings, release_lease_path(settings, name, release), f"release {release} of {name}", now)
        leases.callback(lease.release)


def _shared_version(settings: Settings, dataset: Dataset, bootstrap: str) -> int | None:
    """Return bronze's last version whose records Kafka has; None when that is the newest, or none of the last ones.

    Kafka may have lost its last records, and have others at their offsets since.
    """
    path, topic = bronze_path(settings, dataset.name), dataset.pipeline.topic
    last = table_end(path, AT_START).tail.whole
    head = bronze_head_at(path, last)
    if head is None or head.topic_id != topic_id(bootstrap, topic) or _kafka_has(settings, dataset, last, bootstrap):
        return None
    # A version that no longer opens was on the disk long before.
    low, high = max(-1, last - CHECKED, oldest_version(path) - 1), last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _kafka_has(settings, dataset, middle, bootstrap) else (low, middle)
    return low if bronze_head_at(path, low) is not None else None


def _kafka_has(settings: Settings, dataset: Dataset, version: int, bootstrap: str) -> bool:
    """Whether Kafka has the records of bronze at `version`; it has those of each earlier version then."""
    spec = bronze_spec(settings, dataset.name)
    head = bronze_head_at(spec.path, version)
    try:
        if head is not None:
            refuse_lost_records(dataset.name, head, log_end_offsets(bootstrap, dataset.pipeline.topic))
            refuse_replaced_records(dataset, Table(spec, version), head, bootstrap)
    except (TablesDisagree, RecordsReplaced):
        return False
    return True


def usable_generation(
    settings: Settings, dataset: Dataset, bronze: Table, head: BronzeHead | None, bootstrap: str
) -> tuple[Generation, str | None]:
    """Return the generation to continue with, and a sentence when it replaces one whose files a power cut took.

    Where each host has a state folder, the last one is that of another host. The new one starts where bronze ends.
    Raises as `validated_generation`.
    """
    elsewhere = (CheckpointMissing,) if settings.lease_domain else ()
    try:
        return validated_generation(settings, dataset, bronze, head, bootstrap), None
    except (OffsetLogDamaged, CheckpointAhead, *elsewhere) as problem:
        folder = checkpoint_path(settings, dataset.name)
        generation = next_generation(dataset, folder, bronze, head, bootstrap, accept_loss=False)
        write_generation(folder, generation)
        event = f"checkpoint replaced by generation {generation.number} at bronze's end: {problem.what}"
        return validated_generation(settings, dataset, bronze, head, bootstrap), event
