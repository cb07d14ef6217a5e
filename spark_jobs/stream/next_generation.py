"""The checkpoint generation that continues where bronze ends, when the present one is unusable.

Reads: the checkpoint folder, Kafka's first offsets. Writes: nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from include.declare.dataset import Dataset
from include.ground.kafka import log_start_offsets, topic_id
from spark_jobs.stream.preflight import BronzeHead, OffsetsExpired
from spark_jobs.tables.checkpoint import CheckpointUnusable, Generation, read_generation
from spark_jobs.tables.delta_table import Table


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
    """Return the numbers of all generations in the file, the checkpoint folders and bronze."""
    found = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
    try:
        known = read_generation(folder, dataset)
        found += [known.number] if known else []
    except CheckpointUnusable:
        pass
    committed = re.fullmatch(rf"{re.escape(dataset)}/bronze/(\d+)", head.app_id) if head else None
    return found + ([int(committed[1])] if committed else [])
