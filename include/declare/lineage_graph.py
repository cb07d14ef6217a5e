"""The lineage of tables, as datasets declare it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from include.declare.dataset import Dataset
from include.declare.derived_dataset import DerivedDataset
from include.declare.gold import Gold

REFERENCE = "reference "


@dataclass(frozen=True)
class LineageEdge:
    """`target` is computed from `source`; `by` names the step."""

    source: str
    target: str
    by: str


def lineage_edges(dataset: Dataset) -> Iterator[LineageEdge]:
    """Yield the edges from a dataset's topic to its gold tables."""
    name, pipeline = dataset.name, dataset.pipeline
    bronze, silver = f"bronze.{name}", f"silver.{name}"
    yield LineageEdge(f"topic {pipeline.topic}", bronze, "every record, byte for byte")
    yield LineageEdge(bronze, f"rejected.{name}", "records that break the contract, and duplicates")
    yield LineageEdge(bronze, silver, "contract.yaml, silver.py")
    for table in pipeline.reference:
        yield LineageEdge(f"{REFERENCE}{name}.{table.name}", silver, "joined as of the batch")
    yield from (LineageEdge(silver, f"gold.{gold.name}", described_gold(gold)) for gold in pipeline.gold)


def derived_edges(derived: DerivedDataset) -> Iterator[LineageEdge]:
    """Yield the edges from the sources of a derived dataset to its gold tables."""
    for gold in derived.pipeline.gold:
        by = f"derived by {', '.join(gold.grain)}"
        yield from (LineageEdge(source, f"gold.{gold.name}", by) for source in derived.pipeline.sources.values())


def described_gold(gold: Gold) -> str:
    """Describe kind and grain of a gold table."""
    window, session = gold.window, gold.session
    grain = list(gold.grain_columns)
    if window is not None:
        grain[0] += f" ({window.size} every {window.slide})" if window.slide else f" ({window.size})"
    sessions = f", sessions with gaps of {session.gap}" if session else ""
    return f"{gold.kind} by {', '.join(grain)}{sessions}"
