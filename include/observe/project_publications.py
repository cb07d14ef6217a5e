"""The published batches, derived from the entered commits and the publication's batch alone.

The versions are those that the batch committed and the time is that of its last commit, so that a rebuild enters the
same rows. (The publication file may name later versions of the same content, after a compaction.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, func, select

from include.observe.commit_rows import Row, canonical
from include.observe.ledger_rows import upsert
from include.observe.ledger_schema import batches, gold_commits, projected, publications, runs
from include.read.publication import Publication

GOLD = "gold."


def insert_publications(connection: Connection, publication: Publication) -> int:
    """Enter every batch up to the publication's that all tables of a release hold; return how many were new."""
    releases = _parts_of_paths(connection, f"{publication.dataset}/", "/silver")
    return sum(_enter_release(connection, publication, release) for release in releases)


def is_inserted(connection: Connection, publication: Publication) -> bool:
    """Return whether the publication's own batch is in the ledger as published."""
    c = publications.c
    own = (c.dataset == publication.dataset) & (c.release == publication.release) & (c.batch == publication.batch)
    return connection.execute(select(c.batch).where(own)).first() is not None


def _enter_release(connection: Connection, publication: Publication, release: str) -> int:
    dataset, upto, c = publication.dataset, publication.batch, publications.c
    done = connection.execute(select(func.max(c.batch)).where(c.dataset == dataset, c.release == release)).scalar()
    after = -1 if done is None else int(done)
    found = _runs(connection, dataset, release, after, upto)
    if not found:
        return 0
    needed = _parts_of_paths(connection, f"{dataset}/{release}/gold/", "")
    if release == publication.release:
        needed |= {name.removeprefix(GOLD) for name in publication.tables if name.startswith(GOLD)}
    gold = _gold(connection, dataset, release, after, upto)
    complete = [run for run in found if {commit["gold"] for commit in gold[run["last_batch"]]} >= needed]
    bronze = _bronze_versions(connection, dataset, [run["last_batch"] for run in complete])
    rows = [_row(run, gold[run["last_batch"]], bronze.get(run["last_batch"])) for run in complete]
    upsert(connection, rows)
    return len(rows)


def _row(run: RowMapping, gold: list[RowMapping], bronze: int | None) -> Row:
    dataset = run["dataset"]
    tables = {f"{GOLD}{commit['gold']}": commit["version"] for commit in gold}
    tables |= {f"silver.{dataset}": run["silver_version"], f"rejected.{dataset}": run["rejected_version"]}
    if bronze is not None:
        tables[f"bronze.{dataset}"] = bronze
    times = [run["silver_committed_at_ms"], run["rejected_committed_at_ms"], *(c["committed_at_ms"] for c in gold)]
    key = {"dataset": dataset, "release": run["release"], "batch": run["last_batch"]}
    return Row(publications, key | {"published_at_ms": max(times), "tables": canonical(tables)})


def _runs(connection: Connection, dataset: str, release: str, after: int, upto: int) -> list[RowMapping]:
    whole = runs.c.silver_version.is_not(None) & runs.c.rejected_version.is_not(None)
    return _between(connection, runs, (dataset, release), (after, upto), whole)


def _gold(connection: Connection, dataset: str, release: str, after: int, upto: int) -> dict[int, list[RowMapping]]:
    by_batch: dict[int, list[RowMapping]] = defaultdict(list)
    for commit in _between(connection, gold_commits, (dataset, release), (after, upto)):
        by_batch[commit["last_batch"]].append(commit)
    return by_batch


def _between(
    connection: Connection, table: Table, owner: tuple[str, str], bounds: tuple[int, int], *conditions: Any
) -> list[RowMapping]:
    c, (dataset, release), (after, upto) = table.c, owner, bounds
    ours = (c.dataset == dataset) & (c.release == release) & (c.last_batch > after) & (c.last_batch <= upto)
    return list(connection.execute(select(table).where(ours, *conditions).order_by(c.last_batch)).mappings())


def _bronze_versions(connection: Connection, dataset: str, of: Sequence[int]) -> dict[int, int]:
    """Return by batch the version of bronze; a release that is not advanced any more reads none."""
    if not of:
        return {}
    c = batches.c
    ours = (c.dataset == dataset) & c.batch.between(min(of), max(of))
    found = connection.execute(select(c.batch, c.version).where(ours).order_by(c.version))
    return {int(batch): int(version) for batch, version in found}


def _parts_of_paths(connection: Connection, before: str, after: str) -> set[str]:
    """Return the part between two texts in the paths of the entered tables: releases, or a release's gold tables."""
    paths = connection.execute(select(projected.c.path)).scalars()
    return {p.removeprefix(before).removesuffix(after) for p in paths if p.startswith(before) and p.endswith(after)}
