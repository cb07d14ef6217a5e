"""Spark's offset log of an ingest query: the planned offset ranges of its batches.

`offsets/N` is written before batch N runs, `commits/N` after it. Each has a version line, then JSON lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from spark_jobs.tables.checkpoint_generation import CheckpointUnusable

RECENT = 50


class OffsetLogDamaged(CheckpointUnusable):
    """A file of the checkpoint is empty, truncated or missing; it cannot be inferred from the others."""

    def __init__(self, path: Path, dataset: str, why: str) -> None:
        super().__init__(f"the checkpoint of {dataset} is damaged: {path} {why}; nothing was read", dataset)
        self.path = path
        self.why = why


def logged_batches(folder: Path) -> list[int]:
    """Return the numbers of the files in `offsets` or `commits`, ascending; none without the folder."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


def planned_ends(checkpoint: Path, batch: int, topic: str, dataset: str) -> dict[int, int]:
    """Return the planned end offsets (exclusive) of a batch per partition. Raises OffsetLogDamaged."""
    path = checkpoint / "offsets" / str(batch)
    try:
        lines = path.read_text("utf-8").splitlines()
        ends = json.loads(lines[2])[topic]
        return {int(partition): int(offset) for partition, offset in ends.items()}
    except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
        raise OffsetLogDamaged(path, dataset, f"cannot be read ({type(error).__name__}: {error})") from error


def planned_ranges(
    checkpoint: Path, batch: int, topic: str, dataset: str, start: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Return the half-open offset range of a batch per partition; `start` are the start offsets of batch 0.

    A partition that was added later starts at 0.
    """
    before = dict(start) if batch == 0 else planned_ends(checkpoint, batch - 1, topic, dataset)
    ends = planned_ends(checkpoint, batch, topic, dataset)
    return {partition: (before.get(partition, 0), end) for partition, end in ends.items()}


def validate_log(checkpoint: Path, dataset: str) -> None:
    """Raise OffsetLogDamaged if a log has a gap or an empty file, or commits are ahead of offsets."""
    for name in ("offsets", "commits"):
        _validate_sequence(checkpoint / name, dataset)
    planned, done = logged_batches(checkpoint / "offsets"), logged_batches(checkpoint / "commits")
    if done and (not planned or done[-1] > planned[-1]):
        raise OffsetLogDamaged(
            checkpoint / "offsets" / str(done[-1]), dataset, "is missing, and the batch is committed"
        )


def _validate_sequence(folder: Path, dataset: str) -> None:
    # Only recent files: Spark deletes old ones in any order, so a crash may leave a harmless gap among them.
    numbers = logged_batches(folder)[-RECENT:]
    for before, after in zip(numbers, numbers[1:], strict=False):
        if after != before + 1:
            raise OffsetLogDamaged(folder / str(before + 1), dataset, "is missing")
    for number in numbers[-2:]:
        if (folder / str(number)).stat().st_size == 0:
            raise OffsetLogDamaged(folder / str(number), dataset, "is empty")
