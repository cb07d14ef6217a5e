"""`headrace explain` and `headrace lineage`: a row of gold and its Kafka records; the lineage of tables and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from include.audit.origin import DerivedOrigin, RecordRange, RowOrigin, origin_of
from include.cli.terminal import AsJson, print_json, table_of, wide_console
from include.declare.column_lineage import TableColumns, declared_columns, described_columns
from include.declare.dataset import dataset_names, declared_dataset
from include.declare.derived_dataset import (
    REFERENCE,
    LineageEdge,
    declared_derived,
    derived_edges,
    derived_names,
    lineage_edges,
)
from include.declare.payloads import shown_payload
from include.declare.writer_schemas import known_schemas
from include.ground.errors import Refused
from include.ground.settings import load_settings
from include.read.plain_values import excerpt, json_value, text_value
from include.read.published_tables import pinned

PAYLOAD_WIDTH = 100


def parsed_key(text: str) -> tuple[str, str]:
    """Return column and value of `column=value`; typer's BadParameter."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise typer.BadParameter(f"{text!r} is not COLUMN=VALUE")
    return name, value


def explain(
    table: Annotated[str, typer.Argument(help="A gold table: gold.carrier_hours.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", metavar="COLUMN=VALUE", help="Names the row; repeat it. Empty: null.")
    ] = None,
    records: Annotated[int, typer.Option(min=0, help="Maximum number of records to list, with payloads.")] = 0,
    json_: AsJson = False,
) -> None:
    """Show the Kafka records behind a row of gold: partitions, offsets and batches, optionally payloads."""
    keys, settings, reading = dict(map(parsed_key, key or ())), load_settings(), pinned()
    found = origin_of(settings, reading, table, keys, records)
    if json_:
        print_json(_values(found), indent=None)
    else:
        _print(wide_console(), found, "")


def lineage(
    table: Annotated[
        str | None, typer.Argument(help="Show the columns from which each column of this table is computed.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Show the lineage of tables: topic, bronze, silver, rejected and gold of each dataset."""
    settings = load_settings()
    if table is not None:
        _print_columns(table, declared_columns(settings), json_)
        return
    edges = [edge for name in dataset_names(settings) for edge in lineage_edges(declared_dataset(settings, name))]
    edges += [edge for name in derived_names(settings) for edge in derived_edges(declared_derived(settings, name))]
    if json_:
        print_json(edges)
        return
    targets = {edge.target for edge in edges}
    for root in dict.fromkeys(edge.source for edge in edges if edge.source not in targets):
        wide_console().print(_tree(root, edges))


def _print_columns(name: str, known: Mapping[str, TableColumns], json_: bool) -> None:
    if name not in known:
        remedy = f"declared are: {', '.join(sorted(known)) or 'none'}"
        raise Refused(f"no folder declares a table {name!r}", remedy, code="table-not-declared")
    if json_:
        print_json({"table": name, "columns": known[name].columns, "rows": known[name].rows})
        return
    rows = ((column, made_of, fields) for column, (made_of, fields) in described_columns(known, name).items())
    wide_console().print(table_of(("column", "computed from", "fields of the record"), rows))


def _tree(name: str, edges: Sequence[LineageEdge], by: str = "") -> Tree:
    tree = Tree(Text.assemble((name, "bold"), f"  {by}" if by else ""))
    for edge in edges:
        if edge.source == name:
            # Below a reference table silver is shown without its gold, which is shown below the topic.
            tree.add(_tree(edge.target, [] if name.startswith(REFERENCE) else edges, edge.by))
    return tree


def _origin_values(found: RowOrigin) -> dict[str, Any]:
    rows = [{name: json_value(value) for name, value in row.items()} for row in found.rows]
    records = [{**asdict(record), "value": json_value(record.value)} for record in found.records]
    ranges = [asdict(each) for each in found.ranges]
    facts = {"table": found.table.name, "release": found.table.release, "topic": found.topic}
    return {**facts, "rows": rows, "ranges": ranges, "records": records}


def _values(found: RowOrigin | DerivedOrigin) -> dict[str, Any]:
    return _derived_values(found) if isinstance(found, DerivedOrigin) else _origin_values(found)


def _derived_values(made: DerivedOrigin) -> dict[str, Any]:
    sources = [
        {
            "table": each.table,
            "rows": each.count,
            "ranges": [asdict(r) for r in each.ranges],
            "below": [_values(below) for below in each.below],
        }
        for each in made.sources
    ]
    rows = [{name: json_value(value) for name, value in row.items()} for row in made.rows]
    return {"table": made.table.name, "release": made.table.release, "rows": rows, "sources": sources}


def _print(console: Console, found: RowOrigin | DerivedOrigin, indent: str) -> None:
    _print_rows(console, found.rows, indent)
    if isinstance(found, DerivedOrigin):
        _print_derived(console, found, indent)
    else:
        _print_origin(console, found, indent)


def _print_derived(console: Console, made: DerivedOrigin, indent: str) -> None:
    console.print(f"{indent}{made.table.name} of release {made.table.release}, derived from:")
    for source in made.sources:
        console.print(f"{indent}{source.table}: {source.count:,} rows")
        if source.ranges:
            console.print(Padding(_ranges_table(source.ranges), (0, 0, 0, len(indent)), expand=False))
        if not source.below:
            _print_rows(console, source.rows, f"{indent}  ")
        for below in source.below:
            _print(console, below, f"{indent}  ")
        if source.count > len(source.rows) > 0:
            console.print(Text(f"{indent}  and {source.count - len(source.rows):,} more rows of {source.table}"))


def _print_rows(console: Console, rows: Sequence[Mapping[str, Any]], indent: str) -> None:
    for row in rows:
        shown = ", ".join(f"{k}={text_value(v)}" for k, v in row.items() if not k.startswith("_"))
        console.print(Text(f"{indent}{shown}"))


def _ranges_table(ranges: Sequence[RecordRange]) -> Table:
    rows = ((each.batch, each.partition, each.first, each.last, each.records) for each in ranges)
    return table_of(("batch", "partition", "first offset", "last offset", "records"), rows)


def _print_origin(console: Console, found: RowOrigin, indent: str) -> None:
    total = sum(each.records for each in found.ranges)
    source = f"{found.table.name} of release {found.table.release} ← silver.{found.table.dataset} ← topic {found.topic}"
    console.print(f"{indent}{source}: {total:,} records")
    console.print(Padding(_ranges_table(found.ranges), (0, 0, 0, len(indent)), expand=False))
    schemas = known_schemas(load_settings(), found.table.dataset) if found.records else {}
    for record in found.records:
        payload = shown_payload(record.value, schemas)
        value = "null" if payload is None else excerpt(payload, PAYLOAD_WIDTH)
        console.print(Text(f"{indent}{record.partition}/{record.offset}  {value}"))
