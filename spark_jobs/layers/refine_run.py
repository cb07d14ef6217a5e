"""One run of refine as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from include.declare.dataset import Dataset


@dataclass(frozen=True)
class RefineRun:
    """One pass over bronze batches [first, last], by the owner with this `epoch`."""

    first: int
    last: int
    epoch: int

    @property
    def batches(self) -> tuple[int, int]:
        """First and last batch."""
        return self.first, self.last

    @property
    def folder(self) -> str:
        """Name of the folder for the run's files in each table."""
        return f"b{self.last:08d}-{self.epoch}"

    def facts(self, dataset: Dataset) -> dict[str, Any]:
        """Return the metadata that each commit of the run carries."""
        return {**facts_of(dataset, self.epoch), "batches": [self.first, self.last]}


def facts_of(dataset: Dataset, epoch: int) -> dict[str, Any]:
    """Return the metadata that each commit of the owner with this epoch carries."""
    return {"dataset": dataset.name, "release": dataset.release, "code": dataset.release, "epoch": epoch}
