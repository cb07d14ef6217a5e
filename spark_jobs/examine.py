"""The doctor before the start: checkpoint, bronze and topic agree, or the driver does not start (DESIGN §4, step 2).

Reads: checkpoint, bronze's log, the broker. Writes: the first generation of a dataset that has none and no bronze.
Does not: repair; every refusal names the command that does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from include.catalog.dataset import Dataset
from include.clients.delta_log import commits
from include.clients.kafka import log_end_offsets, log_start_offsets, topic_id
from include.errors import Terminal
from include.places import checkpoint_path
from include.settings import Settings
from spark_jobs.generation import Generation, read_generation, write_generation
from spark_jobs.offset_log import OffsetLogDamaged, logged_batches, planned_ends, validate_log
from spark_jobs.tables import Table


class CheckpointMissing(Terminal):
    """Bronze has batches, and the checkpoint that made them is gone."""

    def __init__(self, dataset: str, path: Path, batch: int) -> None:
        super().__init__(
            f"{path} is missing, and bronze.{dataset} goes up to batch {batch}; a fresh start would skip or double",
            f"headrace repair {dataset}",
        )
        self.dataset = dataset


class TopicReplaced(Terminal):
    """The topic was deleted and made anew: its offsets mean other records now."""

    def __init__(self, dataset: str, topic: str, known: str, found: str) -> None:
        super().__init__(
            f"topic {topic} has the id {found}, bronze.{dataset} was read from {known}; nothing was read",
            "use a new topic name, or a new state folder for the new topic",
        )
        self.known = known
        self.found = found


class OffsetsDisagree(Terminal):
    """Checkpoint, bronze and Kafka do not tell the same story; `why` says which."""

    def __init__(self, dataset: str, why: str) -> None:
        super().__init__(f"{dataset}: {why}; nothing was read", f"headrace audit --dataset {dataset}")
        self.why = why


@dataclass(frozen=True)
class BronzeHead:
    """The last batch of bronze: its number, its generation's app id and transaction, its end offsets."""

    batch: int
    app_id: str
    transaction: int
    ends: Mapping[int, int]
    query_id: str
    topic_id: str


def bronze_head(bronze: Table) -> BronzeHead | None:
    """Return the last committed batch, None for an empty bronze."""
    head = None
    for commit in commits(bronze.spec.path):
        if commit.metadata and commit.app_id and commit.app_version is not None and "offsets" in commit.metadata:
            meta = commit.metadata
            ends = {int(p): int(span[1]) for p, span in meta["offsets"].items()}
            head = BronzeHead(
                meta["batches"][1], commit.app_id, commit.app_version, ends, meta["query_id"], meta["topic_id"]
            )
    return head


def examined_generation(settings: Settings, dataset: Dataset, bronze: Table, bootstrap: str) -> Generation:
    """Return the generation to go on with, after every check; the errors above say what does not agree."""
    folder, topic = checkpoint_path(settings, dataset.name), dataset.pipeline.topic
    head, known = bronze_head(bronze), read_generation(folder, dataset.name)
    found_id = topic_id(bootstrap, topic)
    if known is None:
        if head is not None:
            raise CheckpointMissing(dataset.name, folder / "generation.json", head.batch)
        known = Generation(1, 0, log_start_offsets(bootstrap, topic), topic, found_id, bronze.table_id)
        write_generation(folder, known)
    if known.topic_id != found_id:
        raise TopicReplaced(dataset.name, topic, known.topic_id, found_id)
    if known.bronze_id != bronze.table_id:
        raise OffsetsDisagree(
            dataset.name, f"bronze is table {bronze.table_id}, its checkpoint wrote {known.bronze_id}"
        )
    _validate_checkpoint(dataset.name, known, known.checkpoint(folder), head)
    _validate_against_kafka(dataset.name, head, log_end_offsets(bootstrap, topic))
    return known


def _validate_checkpoint(dataset: str, generation: Generation, checkpoint: Path, head: BronzeHead | None) -> None:
    validate_log(checkpoint, dataset)
    mine = head is not None and head.app_id == generation.app_id(dataset)
    if head is None or not mine:
        if logged_batches(checkpoint / "commits"):
            raise OffsetsDisagree(dataset, f"{checkpoint} has committed batches that bronze does not have")
        return
    planned = logged_batches(checkpoint / "offsets")
    if not planned:
        raise CheckpointMissing(dataset, checkpoint / "offsets", head.batch)
    if planned[-1] < head.transaction:
        raise OffsetLogDamaged(checkpoint / "offsets" / str(head.transaction), dataset, "is missing")
    done = logged_batches(checkpoint / "commits")
    if done and done[-1] > head.transaction:
        raise OffsetsDisagree(dataset, f"the checkpoint has committed batch {done[-1]}, bronze only {head.transaction}")
    ends = planned_ends(checkpoint, head.transaction, generation.topic, dataset)
    if ends != dict(head.ends):
        raise OffsetsDisagree(
            dataset, f"batch {head.batch} ends at {dict(head.ends)} in bronze, at {ends} in the checkpoint"
        )
    _validate_query_id(dataset, checkpoint / "metadata", head.query_id)


def _validate_query_id(dataset: str, path: Path, known: str) -> None:
    try:
        found = json.loads(path.read_text("utf-8"))["id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OffsetLogDamaged(path, dataset, f"cannot be read ({type(error).__name__})") from error
    if found != known:
        raise OffsetsDisagree(dataset, f"the checkpoint is of query {found}, bronze was written by {known}")


def _validate_against_kafka(dataset: str, head: BronzeHead | None, log_ends: Mapping[int, int]) -> None:
    for partition, end in (head.ends if head else {}).items():
        if log_ends.get(partition, -1) < end:
            why = f"bronze has partition {partition} up to {end}, Kafka only up to {log_ends.get(partition)}"
            raise OffsetsDisagree(dataset, why)
