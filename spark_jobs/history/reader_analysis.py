"""Whether the queries of derived datasets are valid over tables that are not published yet, as Spark analyses them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from include.declare.derived_dataset import DerivedDataset, DerivedGold, released_derived
from include.declare.yaml_declarations import DeclarationRefused
from include.ground.settings import Settings
from include.plans.dependants import Analysed
from include.read.publication import (
    Publication,
    PublishedTable,
    publication_json,
    publications,
    published_tables,
    read_publication,
    tables_of,
)
from spark_jobs.layers.derived import SourceTable, checked_rows, open_source

Checked = Callable[[DerivedGold, Mapping[str, SourceTable]], DataFrame]


def analysed_readers(settings: Settings, spark: SparkSession, built: Sequence[Publication]) -> dict[str, Analysed]:
    """Return what is wrong with each published derived dataset that reads a table of these, over their new columns."""
    before = published_tables(settings)
    after = before | {name: table for each in built for name, table in tables_of(settings, each).items()}
    changed = {name for each in built for name in each.tables}
    found = dict[str, Analysed]()
    for name, publication in publications(settings).items():
        if publication.is_derived and changed & set(publication.sources):
            derived = released_derived(settings, name, publication.release)
            checked = partial(checked_rows, spark.newSession(), settings, derived)
            found[name] = Analysed(publication.release, tuple(_faults(checked, derived, before, after)))
    return found


def _faults(
    checked: Checked, derived: DerivedDataset, before: Mapping[str, PublishedTable], after: Mapping[str, PublishedTable]
) -> Iterator[str]:
    """Yield the queries that are valid over the tables before, and not after or with columns of other types."""
    old, new = (_sources(derived, tables) for tables in (before, after))
    for gold in derived.pipeline.gold:
        was = _result(checked, gold, old)
        if isinstance(was, str):
            continue
        now = _result(checked, gold, new)
        if isinstance(now, str):
            yield now
            continue
        kinds = {field.name: field.dataType.simpleString() for field in now.fields}
        for field in was.fields:
            kind, found = field.dataType.simpleString(), kinds.get(field.name)
            if kind != found:
                yield _retyped(f"gold.{gold.name}.{field.name}", kind, found)


def _retyped(column: str, kind: str, new: str | None) -> str:
    if new is None:
        return f"{column} would be missing, is {kind}"
    return f"{column} would become {new}, is {kind}: for a release of both, write cast(… as {new}) in its query"


def _sources(derived: DerivedDataset, tables: Mapping[str, PublishedTable]) -> dict[str, SourceTable]:
    return {name: open_source(tables[table]) for name, table in derived.pipeline.sources.items() if table in tables}


def _result(checked: Checked, gold: DerivedGold, sources: Mapping[str, SourceTable]) -> StructType | str:
    try:
        return checked(gold, sources).schema
    except DeclarationRefused as error:
        return "; ".join(f"{each.file.name}:{each.line} {each.key}: {each.why}" for each in error.problems)


PATIENCE = 30.0
"""Seconds to wait for the derived datasets to follow; stopped ones do not, and are compared as they are."""
POLL = 0.05


@dataclass(frozen=True)
class Pin:
    """A derived dataset's publication.

    `batch_of_source`: the batch of the plan's own dataset that it has used, -1 when it reads none of its tables;
    `built_over`: the new tables of that dataset at this batch.
    """

    published: Publication
    batch_of_source: int
    built_over: Publication | None = None

    def over(self, built: Publication) -> Pin:
        """Return the pin with the tables that the new release is computed over."""
        return self if self.batch_of_source < 0 else replace(self, built_over=built)

    def to_json(self) -> dict[str, Any]:
        over = {} if self.built_over is None else {"over": publication_json(self.built_over)}
        return {"published": publication_json(self.published), **over}


def pin_members(
    settings: Settings,
    source: Publication,
    members: Sequence[str],
    clock: Callable[[], float] = time.monotonic,
    wait: Callable[[float], None] = time.sleep,
) -> dict[str, Pin]:
    """Return the publications of the members, in their order, once they share one state of the sources.

    Each has used at least the batch of `source`, and of the other members what is pinned; or PATIENCE is over.
    """
    end = clock() + PATIENCE
    while True:
        # The readers first: what they have used is then at most as new as what is read after them.
        found = {name: read_publication(settings, name) for name in reversed(members)}
        if clock() >= end or _is_one_state(source, found):
            return {name: Pin(found[name], _batch_used(found[name], source)) for name in members}
        wait(POLL)


def _is_one_state(source: Publication, members: Mapping[str, Publication]) -> bool:
    used = [_batch_used(each, source) for each in members.values()]
    if any(0 <= batch < source.batch for batch in used):
        return False
    return all(_batch_used(each, other) in (-1, other.batch) for each in members.values() for other in members.values())


def _batch_used(reader: Publication, source: Publication) -> int:
    """Return the last batch of a dataset's tables that a derived dataset has used, -1 when it reads none of them."""
    return max((reader.sources[name].batch for name in source.tables if name in reader.sources), default=-1)
