"""`headrace rejected`: what was not accepted, why, and what it looked like."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from include.cli.query import wide_console

if TYPE_CHECKING:
    from include.reading.rejected import RejectedRecord
    from include.reading.tables import Reading

PAYLOAD_WIDTH = 80
app = typer.Typer(no_args_is_help=True, help="The records that are not in silver: which, and why.")

Dataset = Annotated[str | None, typer.Option("--dataset", help="Only this dataset. [default: all]")]
AsJson = Annotated[bool, typer.Option("--json", help="A list of objects, payloads whole.")]


@app.command("list")
def list_rejected(
    dataset: Dataset = None,
    reason: Annotated[str | None, typer.Option(help="Only records that broke this rule.")] = None,
    disposition: Annotated[str | None, typer.Option(help="Only invalid, duplicate or erased.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many records of each dataset, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List rejected records with their reasons, newest first, and the start of their payload."""
    from include.reading import pinned
    from include.reading.rejected import rejected_records

    reading = pinned()
    found = [
        record
        for name in _datasets(reading, dataset)
        for record in rejected_records(reading, name, reason=reason, disposition=disposition, limit=limit)
    ]
    if as_json:
        json.dump([_values(record) for record in found], sys.stdout, indent=1, ensure_ascii=False)
        sys.stdout.write("\n")
        return
    wide_console().print(_records_table(found) if found else "no such record was rejected")


@app.command("summary")
def summarize_rejected(dataset: Dataset = None, as_json: AsJson = False) -> None:
    """Count rejected records by disposition and reason; one that broke several rules counts under each."""
    from include.reading import pinned
    from include.reading.rejected import reason_counts

    reading = pinned()
    counts = [
        {"dataset": name, **row}
        for name in _datasets(reading, dataset)
        for row in reason_counts(reading, name).iter_rows(named=True)
    ]
    if as_json:
        json.dump(counts, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    wide_console().print(_counts_table(counts) if counts else "nothing was rejected")


def _datasets(reading: Reading, only: str | None) -> list[str]:
    from include.reading.rejected import rejected_datasets

    if only is None:
        return rejected_datasets(reading)
    reading.table(f"rejected.{only}")
    return [only]


def _values(record: RejectedRecord) -> dict[str, Any]:
    from dataclasses import asdict

    from include.reading.plain import json_value

    values: dict[str, Any] = json_value(asdict(replace(record, reasons=())))
    return values | {"reasons": [asdict(reason) for reason in record.reasons]}


def _records_table(records: list[RejectedRecord]) -> Table:
    from include.reading.plain import excerpt, iso_time

    table = Table(header_style="bold")
    for name in ("topic/partition/offset", "disposition", "reasons", "first seen", "payload"):
        table.add_column(name, overflow="fold")
    for record in records:
        reasons = "\n".join(" ".join(filter(None, (r.rule, r.column, r.detail))) for r in record.reasons)
        place = f"{record.topic}/{record.partition}/{record.offset}"
        cells = (place, record.disposition, _printable(reasons), iso_time(record.first_seen))
        table.add_row(*map(Text, cells), Text(excerpt(record.payload, PAYLOAD_WIDTH)))
    return table


def _printable(text: str) -> str:
    """Details quote payloads, and a payload must not steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


def _counts_table(counts: list[dict[str, Any]]) -> Table:
    table = Table(header_style="bold")
    for name in ("dataset", "disposition", "rule", "column"):
        table.add_column(name)
    table.add_column("records", justify="right")
    for row in counts:
        names = (str(row[name] or "") for name in ("dataset", "disposition", "rule", "column"))
        table.add_row(*map(Text, names), f"{row['records']:,}")
    return table
