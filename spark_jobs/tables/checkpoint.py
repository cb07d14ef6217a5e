"""The checkpoint of an ingest query: its generation, and Spark's log of the offsets that it has planned.

Spark counts a query's batches from 0. With the old app id, the batches of a new checkpoint would count as committed
and be skipped. A new generation therefore has a new app id, starts at the offsets where bronze ends, and continues
bronze's batch numbers. `headrace repair` creates one; a driver does so only after a power cut lost files.
Spark writes `offsets/N` before batch N runs, `commits/N` after it: a version line, then JSON lines.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from include.ground.app_ids import bronze_app_id
from include.ground.durable_files import write_atomically
from include.ground.errors import Terminal


class CheckpointUnusable(Terminal):
    """An ingest query cannot resume from its checkpoint; `headrace repair` creates a new generation."""

    def __init__(self, what: str, dataset: str) -> None:
        super().__init__(what, f"headrace repair {dataset}")
        self.dataset = dataset


class GenerationDamaged(CheckpointUnusable):
    """The generation file cannot be read."""

    def __init__(self, path: Path, dataset: str, why: str) -> None:
        super().__init__(f"{path} {why}; nothing was started", dataset)
        self.path = path


@dataclass(frozen=True)
class Generation:
    """`number` of the generation; bronze batch = `base` + Spark's batch + quiet batches before it, which Spark does not
    plan; `start` are its first offsets.

    `lost`: offsets [bronze's end, start) by partition that Kafka had expired, accepted by `headrace repair`.
    """

    number: int
    base: int
    start: Mapping[int, int]
    topic: str
    topic_id: str
    bronze_id: str
    lost: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def lost_ranges(self) -> str:
        """The lost offsets as text, "" for none."""
        return ", ".join(f"partition {p} offsets [{first}, {end})" for p, (first, end) in sorted(self.lost.items()))

    def app_id(self, dataset: str) -> str:
        """The app id of this generation's bronze commits."""
        return bronze_app_id(dataset, self.number)

    def checkpoint(self, folder: Path) -> Path:
        """Spark's checkpoint of this generation, below the dataset's checkpoint folder."""
        return folder / str(self.number)


def read_generation(folder: Path, dataset: str) -> Generation | None:
    """Return the dataset's generation, None before its first start. Raises GenerationDamaged when it is unreadable."""
    path = folder / "generation.json"
    try:
        found = json.loads(path.read_text("utf-8"))
        start = {int(partition): int(offset) for partition, offset in found.pop("start").items()}
        lost = {int(partition): (int(first), int(end)) for partition, (first, end) in found.pop("lost", {}).items()}
        return Generation(start=start, lost=lost, **found)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise GenerationDamaged(path, dataset, f"is not a generation file ({error})") from error


def write_generation(folder: Path, generation: Generation) -> None:
    """Write the dataset's generation, atomically and durably."""
    write_atomically(folder / "generation.json", json.dumps(asdict(generation)))


def ensure_generation(folder: Path, generation: Generation) -> None:
    """Write `generation` unless the folder has one."""
    if not (folder / "generation.json").exists():
        write_generation(folder, generation)


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
