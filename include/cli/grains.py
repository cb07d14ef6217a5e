"""`headrace grains`: windows of gold: open, closed, corrected, verified; and their rows before they close."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table

from include.audit.origin import OpenRows, open_rows
from include.change.grains import GrainState, GrainStates, GrainWindow, grain_states, row_states
from include.cli.terminal import AsJson, Cell, print_json, table_of, wide_console
from include.declare.dataset import released_dataset
from include.declare.event_times import utc_text
from include.ground.errors import HeadraceError
from include.ground.settings import Settings, load_settings
from include.observe.ledger_reader import open_reader
from include.observe.watermark import WatermarkStatus, watermark_status
from include.read.publication import Publication, find_publication
from include.read.published_tables import pinned


def open_tables(settings: Settings, publication: Publication, found: WatermarkStatus) -> dict[str, OpenRows]:
    """Return by full name what each table with `on_close` does not have yet."""
    gold = released_dataset(settings, publication.dataset, publication.release).pipeline.gold
    reading = pinned(settings)
    return {
        each.table: open_rows(reading, publication.dataset, each, found.watermark)
        for each in gold
        if each.closes and each.table in publication.tables
    }


def open_windows(
    settings: Settings, dataset: str, behind: Mapping[int, int] | None = None
) -> tuple[dict[str, OpenRows], list[str]]:
    """Return what tables will get later, and the same in sentences with the partition that holds the watermark.

    `behind`: offsets by partition that are not published, None when they are not known.
    """
    publication = find_publication(settings, dataset)
    found = watermark_status(settings, publication, open_reader(settings), behind, {}) if publication else None
    if publication is None or found is None or not found.waits:
        return {}, []
    tables = open_tables(settings, publication, found)
    return tables, list(_sentences(tables, found))


def open_sentences(settings: Settings, dataset: str) -> list[str]:
    """Return in sentences what tables of a dataset that is caught up will get later, or why it is not known."""
    try:
        return open_windows(settings, dataset, {})[1]
    except HeadraceError as error:
        return [f"{dataset}: what tables with on_close wait for is not known: {error.what}"]


def _sentences(tables: Mapping[str, OpenRows], found: WatermarkStatus) -> Iterator[str]:
    for name, each in tables.items():
        first = f"; the first when the watermark reaches {utc_text(each.closes)}" if each.closes else ""
        if each.rows is None:
            yield f"{name}: how many rows are not closed yet is not known, since DuckDB cannot evaluate its declaration"
        elif each.rows:
            yield f"{name}: {each.rows:,} rows are not closed yet and appear later{first}"
    if found.holder is not None and any(each.rows != 0 for each in tables.values()):
        yield found.holder.sentence


STATES = tuple(map(str, GrainState))
SHOWN = ("_state", "_first_batch", "_last_batch", "_revision")


def grains(
    dataset: Annotated[str, typer.Option("--dataset", help="The dataset.")],
    table: Annotated[str | None, typer.Option("--table", help="Only this gold table, window by window.")] = None,
    rows: Annotated[bool, typer.Option("--rows", help="With --table: each row with its state, as JSON lines.")] = False,
    state: Annotated[str | None, typer.Option("--state", help="Only open, closed, corrected or verified.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of windows.")] = 20,
    json_: AsJson = False,
) -> None:
    """Show which windows and sessions of gold are open (early), closed (on time), corrected or verified.

    A grain is verified when a backfill has recomputed it since its last change and found it equal.
    """
    if state is not None and state not in STATES:
        raise typer.BadParameter(f"{state!r} is not one of {', '.join(STATES)}", param_hint="--state")
    if rows:
        _print_rows(dataset, table, state, limit)
        return
    settings = load_settings()
    found = grain_states(settings, dataset)
    known = sorted(gold.name for gold in found.gold)
    waiting, sentences = open_windows(settings, dataset)
    if table is not None and table not in known:
        raise typer.BadParameter(f"{table!r} is not one of {', '.join(known)}", param_hint="--table")
    chosen = [w for w in found.windows if table in (None, w.table) and state in (None, w.state)]
    if json_:
        print_json({"dataset": dataset, "watermark": found.watermark, "windows": chosen, "waiting": waiting})
        return
    console = wide_console()
    console.print(f"{dataset}: complete up to {_moment(found.watermark)}")
    console.print(_listed(chosen, limit) if table else _counted(found, state))
    if table and len(chosen) > limit:
        console.print(f"{len(chosen) - limit:,} windows more: --limit")
    for line in sentences:
        console.print(line, markup=False)


def _print_rows(dataset: str, table: str | None, state: str | None, limit: int) -> None:
    """Print rows of a table, one JSON object per line, with `_state`."""
    if table is None:
        raise typer.BadParameter("--rows needs --table", param_hint="--rows")
    for batch in row_states(load_settings(), dataset, table.removeprefix("gold.")).to_batches():
        for row in batch.to_pylist():
            if state not in (None, row["_state"]):
                continue
            if limit == 0:
                return
            limit -= 1
            shown = {name: value for name, value in row.items() if not name.startswith("_") or name in SHOWN}
            print_json(shown, indent=None)


def _counted(found: GrainStates, state: str | None) -> Table:
    counts: dict[str, Counter[str]] = {}
    counts |= {gold.name: Counter() for gold in found.gold}
    for window in found.windows:
        counts.setdefault(window.table, Counter())[window.state] += window.grains
    shown = [name for name in STATES if state in (None, name)]
    rows: list[list[Cell]] = [[name, *(counted[one] for one in shown)] for name, counted in counts.items()]
    return table_of(("gold table", *(f"{name} grains" for name in shown)), rows)


def _listed(windows: list[GrainWindow], limit: int) -> Table:
    rows = ((_moment(each.start), str(each.state), each.grains, str(each.batch)) for each in windows[:limit])
    return table_of(("window from (UTC)", "state", "grains", "last batch"), rows)


def _moment(at: datetime | None) -> str:
    return "no time yet" if at is None else utc_text(at, "minutes")
