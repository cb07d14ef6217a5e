"""`headrace query` and `headrace tables`: read the published tables."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.cli.main import INTERRUPTED
from include.cli.terminal import AsJson, output_file, print_json, table_of, wide_console
from include.ground.settings import load_settings
from include.read.plain_values import is_numeric, json_value, text_value
from include.read.published_sql import QueryResult, run_query, write_catalog
from include.read.published_tables import TableStats, layer_order, pinned
from include.read.subscription import ResultChange, watched_changes

SHOWN_ROWS = 200


class Format(StrEnum):
    """How rows are printed."""

    table = "table"
    json = "json"
    csv = "csv"


def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over bronze.x, silver.x, rejected.x, gold.y; - reads stdin.")],
    format: Annotated[Format, typer.Option(help="json and csv hold every row and digit.")] = Format.table,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=0, help=f"Maximum number of rows. (default: {SHOWN_ROWS} in a table, else all)")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Run the query again after each publication, and print the changed rows.")
    ] = False,
) -> None:
    """Query the published tables in SQL (DuckDB, UTC), all pinned to the versions of one publication.

    With --watch, + marks new rows and - marks rows that are gone; json has one object per publication. Ctrl-C ends it.
    """
    text = sys.stdin.read() if sql == "-" else sql
    format = Format.json if as_json else format
    if watch:
        _watch(text, format, limit)
        return
    found = run_query(pinned(), text)
    if format is Format.table:
        print_table(found, SHOWN_ROWS if limit is None else limit)
        return
    rows = found.rows if limit is None else islice(found.rows, limit)
    (write_json if format is Format.json else write_csv)(found.columns, rows, sys.stdout)


def _watch(sql: str, format: Format, limit: int | None) -> None:
    if format is Format.csv:
        raise typer.BadParameter("--watch prints a table or json", param_hint="--format")
    try:
        most = SHOWN_ROWS if limit is None and format is Format.table else limit
        for change in watched_changes(load_settings(), sql, most):
            if format is Format.json:
                print_json(_change_values(change), indent=None)
            else:
                _print_change(change)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _change_values(change: ResultChange) -> dict[str, Any]:
    names = list(_distinct(change.columns))
    rows = [(sign, dict(zip(names, map(json_value, row), strict=True))) for sign, *row in change.rows]
    added, removed = ([row for sign, row in rows if sign == wanted] for wanted in (1, -1))
    return {"batches": dict(change.batches), "rows": change.total, "added": added, "removed": removed}


def _print_change(change: ResultChange) -> None:
    console, batches = wide_console(), ", ".join(f"{name} batch {batch}" for name, batch in change.batches.items())
    counts = f"{change.new:,} new, {change.gone:,} gone, {change.total:,} in all"
    console.print(f"\n[bold]{batches or 'no table'}[/]: {counts}")
    if change.rows:
        marks = {1: Text("+", "green"), -1: Text("-", "red")}
        rows = (
            (marks[sign], *(Text(text_value(value), marks[sign].style) for value in row)) for sign, *row in change.rows
        )
        console.print(table_of(("", *change.columns), rows, _numeric(change.columns, change.types)))
    if len(change.rows) < change.new + change.gone:
        console.print(f"the first {len(change.rows):,} rows; more with --limit")


def tables(
    as_json: AsJson = False,
    duckdb: Annotated[
        Path | None,
        typer.Option(
            "--duckdb",
            parser=output_file,
            metavar="FILE",
            help="Write a DuckDB database of views over them, for other tools.",
        ),
    ] = None,
) -> None:
    """List the published tables: rows, size, files, version and batch, from their Delta logs."""
    reading = pinned()
    if duckdb is not None:
        views = write_catalog(reading, duckdb.resolve())
        typer.echo(f"{duckdb}: {_counted(len(views), 'view')} of the tables as published now; run it again later")
        return
    facts = [reading.facts(name) for name in sorted(reading.tables, key=layer_order)]
    if as_json:
        print_json([_fact_values(fact) for fact in facts])
    elif not facts:
        Console().print("nothing is published yet; start with: headrace up")
    else:
        wide_console().print(_facts_table(facts))


def print_table(found: QueryResult, limit: int) -> None:
    """Print up to `limit` rows as a table with right-aligned numbers, and the row count."""
    rows = list(islice(found.rows, limit + 1))
    shown = (map(text_value, row) for row in rows[:limit])
    console = wide_console()
    console.print(table_of(found.columns, map(tuple, shown), _numeric(found.columns, found.types), box=HEAVY_HEAD))
    more = len(rows) > limit
    console.print(f"the first {limit} rows; more with --limit" if more else f"{_counted(len(rows), 'row')}")


def _numeric(columns: Sequence[str], types: Sequence[str]) -> set[str]:
    return {name for name, kind in zip(columns, types, strict=True) if is_numeric(kind)}


def write_json(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]], out: TextIO) -> None:
    """Write rows as a JSON list of objects, one per line; a repeated column name gets a number."""
    names = list(_distinct(columns))
    out.write("[")
    for number, row in enumerate(rows):
        item = {name: json_value(value) for name, value in zip(names, row, strict=True)}
        out.write(("\n " if number == 0 else ",\n ") + json.dumps(item, ensure_ascii=False))
    out.write("\n]\n")


def write_csv(columns: tuple[str, ...], rows: Iterable[tuple[Any, ...]], out: TextIO) -> None:
    """Write rows as CSV with a header; null is an empty field."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([text_value(value) for value in row] for row in rows)


def _distinct(columns: tuple[str, ...]) -> Iterator[str]:
    seen: set[str] = set()
    for column in columns:
        name, number = column, 1
        while name in seen:
            number += 1
            name = f"{column}_{number}"
        seen.add(name)
        yield name


def _fact_values(fact: TableStats) -> dict[str, Any]:
    table = fact.table
    return {
        "name": table.name,
        "rows": fact.rows,
        "bytes": fact.size,
        "files": fact.files,
        "version": table.version,
        "batch": table.batch,
        "dataset": table.dataset,
        "release": table.release,
        "path": str(table.path),
    }


def _facts_table(facts: list[TableStats]) -> Table:
    rows = (
        (
            *(each.table.name, "unknown" if each.rows is None else each.rows, f"{each.size / 1e6:,.1f}", each.files),
            *(str(each.table.version), str(each.table.batch), str(each.table.path)),
        )
        for each in facts
    )
    numbers = ("rows", "MB", "files", "version", "batch")
    return table_of(("table", *numbers, "path"), rows, numbers)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
