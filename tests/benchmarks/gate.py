"""Whether the results of a session are valid: every sent record is in the tables once, and gold is correct.

Counts and an order-independent hash come from what was sent, views from the workload's oracle, balance from the audit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import partial

import polars as pl
import pyarrow.compute as pc
import pyarrow.dataset as ds

from benchmarks.event_supply import FEEDS
from benchmarks.result import Figures
from benchmarks.sent_records import VIEW_ROWS, WRAP, SentRecords, identity_hash
from benchmarks.session import BenchSession
from benchmarks.state import ONE_GOLD_TABLE
from include.audit.balance import DatasetAudit
from include.audit.kafka import open_topic
from include.audit.run import Scope, audit_dataset
from include.audit.verified_history import audit_scope, full_scope
from include.read.published_tables import pinned

MOST_FINDINGS = 5


def audited(session: BenchSession) -> tuple[Figures, list[str]]:
    """Run a full audit, then an incremental one; return the seconds of both, and what is wrong."""
    session.log("audit: is every record accounted for? …")
    first, seconds = _timed_audit(session, full_scope)
    again, seconds_again = _timed_audit(session, partial(audit_scope, first.scope.reached))
    records = session.sent.records
    problems = [finding.sentence() for finding in (*first.findings, *again.findings)[:MOST_FINDINGS]]
    problems += [f"{skipped.table} was not checked" for skipped in (*first.unchecked, *again.unchecked)]
    figures = {"records/s": records / seconds, "seconds": seconds, "seconds, again": seconds_again}
    return {**figures, "records": float(records)}, problems


def _timed_audit(session: BenchSession, scope: Scope) -> tuple[DatasetAudit, float]:
    began = time.monotonic()
    opened = partial(open_topic, session.bootstrap, jars=session.settings.jars)
    found = audit_dataset(session.settings, session.dataset, opened, scope=scope)
    return found, time.monotonic() - began


def published_problems(session: BenchSession) -> list[str]:
    """Compare the published tables with what was sent; return what differs. Memory does not grow with the tables."""
    reading, sent, name = pinned(session.settings), session.sent, session.dataset
    expected = {"bronze": sent.records, "silver": sent.accepted, "rejected": sent.records - sent.accepted}
    found = {layer: int(reading.arrow(f"{layer}.{name}").count_rows()) for layer in expected}
    problems = [
        f"{layer}.{name} has {found[layer]:,} rows instead of {count:,}"
        for layer, count in expected.items()
        if found[layer] != count
    ]
    identity = FEEDS[name].id_field
    batches = reading.arrow(f"silver.{name}").to_batches(columns=[identity])
    identities = (pl.Series(batch.column(0)) for batch in batches)
    views = reading.arrow("gold.campaign_views") if name in ONE_GOLD_TABLE else None
    return [*problems, *table_problems(sent, identities, views)]


def table_problems(sent: SentRecords, identities: Iterable[pl.Series], views: ds.Dataset | None) -> list[str]:
    """Compare silver's identities, in parts, and gold's views if given, with what was sent; return what differs."""
    problems, rows, hashed = [], 0, 0
    for part in identities:
        rows, hashed = rows + len(part), (hashed + identity_hash(part)) % WRAP
    if rows != sent.accepted:
        problems.append(f"silver has {rows:,} rows instead of {sent.accepted:,}")
    if hashed != sent.hash:
        problems.append("silver holds other identities than those that were sent")
    return problems if views is None else [*problems, *_view_problems(sent, views)]


def _view_problems(sent: SentRecords, views: ds.Dataset) -> Iterator[str]:
    keys, read, twice, wrong = ["campaign_id", "since"], 0, 0, 0
    for first, until in sent.view_spans():
        inside = (pc.field("since") >= first) & (pc.field("since") < until)
        rows = pl.DataFrame(views.to_table(list(VIEW_ROWS), inside))
        published = rows.select(pl.col(name).cast(kind) for name, kind in VIEW_ROWS.items())
        both = sent.view_rows(first, until).join(published, on=keys, how="full", suffix="_published")
        read += published.height
        twice += published.height - published.select(keys).unique().height
        wrong += both.filter(pl.col("views").ne_missing(pl.col("views_published"))).height
    if twice:
        yield f"gold has {twice:,} keys twice"
    if wrong:
        yield f"{wrong:,} rows of gold differ from the oracle's"
    if undated := views.count_rows() - read:
        yield f"{undated:,} rows of gold are of no window"
