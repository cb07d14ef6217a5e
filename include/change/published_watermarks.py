"""The watermark after each run of a published dataset: from the ledger, of a derived one the least of its sources'.

Reads: publications, the ledger, the commits of derived tables, which name the batches of the sources.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from include.declare.dataset import released_dataset
from include.declare.watermark import Watermark, watermarks
from include.ground.delta_log import commits
from include.ground.settings import Settings
from include.observe.ledger_reader import open_reader
from include.read.publication import published_tables, read_publication, tables_of


def published_watermarks(settings: Settings, dataset: str) -> list[Watermark]:
    """Return the watermark before and after each run of the published release. Raises NothingPublished."""
    publication = read_publication(settings, dataset)
    if not publication.is_derived:
        declared = released_dataset(settings, dataset, publication.release)
        runs, _ = open_reader(settings).event_times(dataset, publication.release)
        return list(watermarks(runs, declared.pipeline.lateness))
    owners = {table: found.dataset for table, found in published_tables(settings).items()}
    below = {table: published_watermarks(settings, owners[table]) for table in publication.sources}
    table = next(iter(tables_of(settings, publication).values()))
    return derived_watermarks(source_batches(table.path), below)


def source_batches(table: Path) -> dict[int, dict[str, int]]:
    """Return by the number of each run of a derived table the last batch of each source, by full name."""
    found = dict[int, dict[str, int]]()
    for commit in commits(table):
        if commit.metadata is not None and {"batches", "sources"} <= set(commit.metadata):
            sources = commit.metadata["sources"].items()
            found[commit.metadata["batches"][1]] = {name: batch for name, (_, batch, _) in sources}
    return found


def derived_watermarks(
    runs: Mapping[int, Mapping[str, int]], below: Mapping[str, Sequence[Watermark]]
) -> list[Watermark]:
    """Return the watermark of each run over these batches of its sources, whose watermarks are `below`."""
    found, reached = list[Watermark](), None
    for number in sorted(runs):
        known = [after_batch(below[table], batch) for table, batch in runs[number].items() if table in below]
        least = None if None in known else min(filter(None, known), default=None)
        before, reached = reached, max(filter(None, (reached, least)), default=None)
        found.append(Watermark(number, before, reached))
    return found


def after_batch(known: Sequence[Watermark], batch: int) -> datetime | None:
    """Return the watermark after a batch; None before the first run."""
    place = bisect_right(known, batch, key=lambda each: each.batch)
    return known[place - 1].after if place else None
