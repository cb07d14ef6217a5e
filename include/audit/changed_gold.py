"""I5 since the last balanced audit: grains that newer rows of silver touch, and a proof that all others are the same.

Reads: newer rows of silver and all rows of the grains that they touch; files of gold that may have these grains, and
those that were added or removed since.  Writes: nothing.
Guarantee: None, and so a check of the whole table, unless the other rows are those that were verified (adr-0003).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

from include.audit.audit_findings import Finding
from include.audit.file_findings import READ_ERRORS
from include.audit.gold_file_rows import GoldFiles, gold_files
from include.audit.gold_findings import (
    GoldCheck,
    Recomputation,
    UncheckedTable,
    columns_of,
    gold_check,
)
from include.audit.gold_recomputation import latest_candidates_sql, newest_sql, recompute_sql
from include.audit.row_digest import row_digest
from include.audit.touched_grains import (
    add_closed,
    add_near_sessions,
    closed_span,
    create_touched,
    event_spans,
    listed,
    merged_spans,
    row_spans,
    touches_sql,
    touching_sql,
    within,
)
from include.audit.verified_history import AuditScope, VerifiedGold
from include.declare.event_times import after, before
from include.declare.measures import Measure
from include.declare.pipeline import AdditiveGold, Gold, LatestGold, closes, gold_session, gold_window
from include.ground.sql_quoting import sql_identifier
from include.read.memory_database import view_rows
from include.read.published_tables import PinnedTables
from include.read.refresh_state import RefreshState

MERGED = {"count": "sum", "count_if": "sum", "sum": "sum", "min": "min", "max": "max"}
"""Measures that a verified value and that of newer rows give together, and how."""


@dataclass(frozen=True)
class ChangedGold:
    """A gold table as published, and how far it was verified `before`; `silver`: the rows that it is computed from."""

    gold: Gold
    files: GoldFiles
    silver: Any
    before: VerifiedGold
    refreshed: RefreshState

    @property
    def newer(self) -> Any:
        """The rows of silver that came since. A row without a batch is never verified."""
        return self.silver.filter((pc.field("_batch_id") > self.before.batch) | pc.field("_batch_id").is_null())


def changed_gold(
    tables: PinnedTables, scope: AuditScope, gold: Gold, silver: Any, refreshed: RefreshState
) -> ChangedGold | None:
    """Return what an audit needs to check only what changed in a table; None when it has to check all of it."""
    name = f"gold.{gold.name}"
    before = None if scope.verified is None else scope.verified.gold.get(name)
    if before is None or (closes(gold) and gold_session(gold) is not None):
        # The verified table lacks the sessions that were open then; newer rows join them as well.
        return None
    if _has_reopened(gold, before, refreshed):
        return None
    files = gold_files(tables, scope, name)
    return None if files is None else ChangedGold(gold, files, silver, before, refreshed)


def _has_reopened(gold: Gold, before: VerifiedGold, refreshed: RefreshState) -> bool:
    """Whether a table with `on_close` is published with an earlier watermark than it was verified with."""
    if not closes(gold) or before.watermark is None:
        return False
    return refreshed.watermark is None or refreshed.watermark < before.watermark


def changed_gold_check(
    database: Any, changed: ChangedGold, first: int
) -> tuple[GoldCheck | UncheckedTable, list[Finding]] | None:
    """Check the touched grains as `gold_check` does, and that no other row changed; None when one did.

    None also after any error: a replaced file may be deleted meanwhile. The check of the whole table then decides.
    """
    with suppress(*READ_ERRORS):
        return _check_touched(database, changed, first)
    return None


def _check_touched(
    database: Any, changed: ChangedGold, first: int
) -> tuple[GoldCheck | UncheckedTable, list[Finding]] | None:
    gold, files = changed.gold, changed.files
    _find_touched(database, changed)
    if _digest(database, changed, files.removed) != _digest(database, changed, files.added):
        return None
    published = _touched_part(database, changed, files.added | files.near(*row_spans(database, gold)))
    database.execute(f"create or replace temp table published_part as {published}")
    database.execute("drop view if exists published; create temp view published as from published_part")
    touched = database.execute("select count(*) from published_part").fetchall()[0][0]
    earlier = files.rows_published - touched
    rows = _merged(database, changed) if is_merged(gold, changed.before) else _recomputed(database, changed)
    check, findings = gold_check(database, gold, changed.refreshed, first, Recomputation(rows, earlier))
    return (_with_earlier(check, changed.before) if isinstance(check, GoldCheck) else check), findings


def _with_earlier(check: GoldCheck, before: VerifiedGold) -> GoldCheck:
    """Return the check of touched grains with what was found earlier about the others.

    After an expiry everything is compared, so the rows that could not be compared are those of the verified table.
    """
    others = before.expired - check.expired
    return replace(
        check,
        rows=check.rows - others,
        earlier=check.earlier - others,
        expired=before.expired,
        decided=check.decided and before.decided,
    )


def is_merged(gold: Gold, before: VerifiedGold) -> bool:
    """Whether verified rows and newer rows of silver give a table's rows, without older rows of silver."""
    if isinstance(gold, LatestGold):
        return before.decided
    if not isinstance(gold, AdditiveGold) or gold.window is not None or gold.session is not None:
        return False
    return all(measure.function in (*MERGED, "ratio") for measure in gold.measures)


def _find_touched(database: Any, changed: ChangedGold) -> None:
    """Create the table `touched`."""
    gold, window, session = changed.gold, gold_window(changed.gold), gold_session(changed.gold)
    view_rows(database, "silver", changed.newer)
    create_touched(database, gold)
    old, new = changed.before.watermark, changed.refreshed.watermark
    if closes(gold) and window is not None and new is not None:
        view_rows(database, "silver", changed.silver.filter(within(window.column, [closed_span(window, old, new)])))
        add_closed(database, gold, window, old, new)
    if session is not None:
        columns, spans = row_spans(database, gold)
        near = [(before(low, session.gap), after(high, session.gap)) for low, high in spans]
        files = changed.files
        view_rows(database, "rows_before", files.rows(files.removed | files.near(columns, merged_spans(near))))
        add_near_sessions(database, session, gold.keys)


def _digest(database: Any, changed: ChangedGold, paths: frozenset[str]) -> tuple[int, int]:
    """Return the number of rows in files of gold that are of no touched grain, and the sum of their hashes."""
    if not paths:
        return 0, 0
    view_rows(database, "other_rows", changed.files.rows(paths))
    untouched = f"anti join touched as t on {touches_sql(changed.gold, 'o', 't')}"
    return row_digest(database, f"other_rows as o {untouched}", changed.files.schema.names)


def _touched_part(database: Any, changed: ChangedGold, paths: frozenset[str]) -> str:
    """Return the query of the rows of touched grains in files of gold."""
    view_rows(database, "near_rows", changed.files.rows(paths))
    return f"select p.* from near_rows as p semi join touched as t on {touches_sql(changed.gold, 'p', 't')}"


def _recomputed(database: Any, changed: ChangedGold) -> str:
    """Return the query that computes the touched grains from all rows of silver that they have."""
    gold, spans = changed.gold, event_spans(database, changed.gold)
    view_rows(database, "near_silver", changed.silver if spans is None else changed.silver.filter(within(*spans)))
    database.execute("drop view if exists silver")
    database.execute(f"create temp view silver as {touching_sql(gold, 'near_silver')}")
    computed = recompute_sql(gold, columns_of(database, "silver"))
    return f"select r.* from ({computed}) as r semi join touched as t on {touches_sql(gold, 'r', 't')}"


def _merged(database: Any, changed: ChangedGold) -> str:
    """Return the query that computes the touched grains from their verified rows and newer rows of silver."""
    gold, files = changed.gold, changed.files
    view_rows(database, "silver", changed.newer)
    before = _touched_part(database, changed, files.removed | files.near(*row_spans(database, gold)))
    database.execute(f"create or replace temp table touched_before as {before}")
    silver = columns_of(database, "silver")
    if isinstance(gold, LatestGold):
        candidates = latest_candidates_sql(gold, silver)
        names = listed(columns_of(database, candidates))
        return newest_sql(gold, f"select {names} from touched_before union all {candidates}")
    assert isinstance(gold, AdditiveGold)
    return _merged_measures(gold, recompute_sql(gold, silver))


def _merged_measures(gold: AdditiveGold, newer: str) -> str:
    keys, names = listed(gold.keys), listed(measure.name for measure in gold.measures if measure.function in MERGED)
    both = f"select {keys}, {names} from touched_before union all by name select {keys}, {names} from ({newer})"
    measures = ", ".join(f"{_merge_sql(measure)} as {sql_identifier(measure.name)}" for measure in gold.measures)
    return f"select {keys}, {measures} from ({both}) group by {keys}"


def _merge_sql(measure: Measure) -> str:
    if measure.function == "ratio":
        of, to = (f"cast(sum({sql_identifier(name)}) as double)" for name in (measure.of, measure.to))
        return f"{of} / nullif({to}, 0)"
    return f"{MERGED[measure.function]}({sql_identifier(measure.name)})"
