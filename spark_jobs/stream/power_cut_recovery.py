"""Recovery from a power cut at a driver's start, without a command (adr-0005).

Reads: the ends of the tables' logs, the last records of bronze and Kafka, the checkpoint.
Writes: moves log files out of tables (`table_rollback.py`); a new checkpoint generation.
Guarantee: bronze, the tables of each active release and Kafka share the last batch that is left, and later batches are
read and refined again. Nothing is rolled back that is older than a power cut can take.
After a crash: the next start does the rest.
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime, timedelta

from include.declare.dataset import Dataset
from include.ground.delta_log import LOG
from include.ground.kafka import log_end_offsets, topic_id
from include.ground.paths import bronze_path, checkpoint_path, release_lease_path, removed_commits_path
from include.ground.settings import Settings
from include.state.lease import take_lease
from spark_jobs.layers.bronze import bronze_spec
from spark_jobs.stream.next_generation import next_generation, next_offsets
from spark_jobs.stream.preflight import (
    BronzeHead,
    CheckpointAhead,
    RecordsReplaced,
    TablesDisagree,
    bronze_head_at,
    refuse_lost_records,
    refuse_replaced_records,
    validated_generation,
)
from spark_jobs.stream.table_rollback import planned_rollback, release_names, table_end
from spark_jobs.tables.checkpoint import Generation, OffsetLogDamaged, write_generation
from spark_jobs.tables.commit_log import CHECKED, oldest_version
from spark_jobs.tables.delta_table import Table
from spark_jobs.tables.log_lines import log_line

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
    if not (path / LOG).is_dir():
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
        for release in release_names(settings, name):
            path = release_lease_path(settings, name, release)
            lease = take_lease(settings, path, f"release {release} of {name}", now)
            leases.callback(lease.release)
        rollback.execute(folder)
    tables = ", ".join(rollback.files)
    return f"rolled back to bronze batch {head.batch} or before, as after a power cut: {tables}; removed: {folder}"


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

    The new one starts where bronze ends. Raises as `validated_generation`.
    """
    try:
        return validated_generation(settings, dataset, bronze, head, bootstrap), None
    except (OffsetLogDamaged, CheckpointAhead) as problem:
        folder = checkpoint_path(settings, dataset.name)
        generation = next_generation(dataset, folder, bronze, head, bootstrap, accept_loss=False)
        write_generation(folder, generation)
        event = f"checkpoint replaced by generation {generation.number} at bronze's end: {problem.what}"
        return validated_generation(settings, dataset, bronze, head, bootstrap), event
