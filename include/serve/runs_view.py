"""A page of a dataset's refine runs, by key: the cost of a page does not depend on how many runs there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from include.observe.ledger_reader import LedgerReader, RecordedRun
from include.serve.display_values import duration, moment_of_ms, whole

PAGE = 50


@dataclass(frozen=True)
class RunLine:
    """One run as text."""

    batches: str
    rows_in: str
    accepted: str
    rejected: str
    reasons: str
    gold: str
    published: str
    took: str


@dataclass(frozen=True)
class RunsView:
    """A page of runs; `older` and `newer` are the queries of the adjacent pages, "" where there is none."""

    release: str
    runs: Sequence[RunLine]
    older: str
    newer: str


def runs_view(
    reader: LedgerReader, dataset: str, release: str | None, before: int | None, after: int | None
) -> RunsView:
    """Return the runs that end before batch `before` or after batch `after`; the newest without either."""
    if release is None:
        return RunsView("", (), "", "")
    if after is not None:
        found = reader.runs_after(dataset, release, after, PAGE)
    else:
        found = reader.runs_before(dataset, release, before, PAGE)
    newer = bool(found) and bool(reader.runs_after(dataset, release, found[0].last_batch, 1))
    older = bool(found) and bool(reader.runs_before(dataset, release, found[-1].last_batch, 1))
    return RunsView(
        release,
        [run_line(run) for run in found],
        f"release={release}&before={found[-1].last_batch}" if older else "",
        f"release={release}&after={found[0].last_batch}" if newer else "",
    )


def run_line(run: RecordedRun) -> RunLine:
    """Return a run as text."""
    batches = str(run.last_batch) if run.first_batch == run.last_batch else f"{run.first_batch}–{run.last_batch}"
    known = run.published_at_ms is not None and run.committed_at_ms is not None
    took = ((run.published_at_ms or 0) - (run.committed_at_ms or 0)) / 1000 if known else None
    return RunLine(
        batches,
        whole(run.rows_in),
        whole(run.accepted),
        whole(run.rejected),
        ", ".join(f"{reason} {count:,}" for reason, count in sorted(run.reasons.items())),
        ", ".join(f"{table} {count:,}" for table, count in sorted(run.gold.items())),
        moment_of_ms(run.published_at_ms),
        duration(took),
    )
