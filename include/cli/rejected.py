"""`headrace rejected`: rejected records with reasons, payloads and decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Annotated, Any, Literal

import typer
from rich.box import HEAVY_HEAD
from rich.table import Table
from rich.text import Text

from include.change.kind import refuse_unknown_dataset
from include.cli.main import FAILED
from include.cli.terminal import AsJson, Offset, Offsets, Partition, print_json, table_of, utc_time, wide_console
from include.declare.payloads import shown_payload
from include.declare.writer_schemas import known_schemas
from include.ground.settings import load_settings
from include.read.plain_values import excerpt, iso_time, json_value, text_of
from include.read.published_tables import PinnedTables, pinned
from include.read.rejected_records import (
    REINSTATED,
    Decision,
    RejectedFilter,
    RejectedRecord,
    decided_records,
    reason_counts,
    rejected_datasets,
    rejected_records,
)

PAYLOAD_WIDTH = 80
app = typer.Typer(no_args_is_help=True, help="Records that are not in silver: list, fix, discard, reinstate.")

Dataset = Annotated[str | None, typer.Option("--dataset", help="Only this dataset. (default: all)")]
Reason = Annotated[str | None, typer.Option(help="Only records that broke this rule.")]
Column = Annotated[str | None, typer.Option(help="Only records in which this column broke a rule.")]
Status = Annotated[
    Literal["open", "fixed", "discarded", "duplicate", "tombstone"] | None,
    typer.Option(help="Only records of this status."),
]
Since = Annotated[datetime | None, typer.Option("--from", parser=utc_time, metavar="TIME", help="First Kafka time.")]
Until = Annotated[
    datetime | None,
    typer.Option("--to", parser=utc_time, metavar="TIME", help="End, exclusive."),
]


@app.command("list")
def list_rejected(
    dataset: Dataset = None,
    reason: Reason = None,
    column: Column = None,
    disposition: Annotated[
        Literal["invalid", "duplicate", "tombstone"] | None,
        typer.Option(help="Only invalid records, only duplicates, or only records without a value after a deletion."),
    ] = None,
    status: Status = None,
    since: Since = None,
    until: Until = None,
    offsets: Offsets = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of records per dataset, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List rejected records with their reasons and status, newest first, and the start of their payload."""

    settings, reading = load_settings(), pinned()
    selection = RejectedFilter(reason, column, disposition, status, since, until, offsets)
    found = [
        record
        for name in _datasets(reading, dataset)
        for record in rejected_records(reading, name, selection, decided_records(settings, name), limit)
    ]
    if as_json:
        print_json([_values(record) for record in found])
        return
    wide_console().print(_records_table(_shown(found)) if found else "no rejected record matches")


@app.command("show")
def show_rejected(
    dataset: Annotated[str, typer.Option("--dataset", help="The dataset.")],
    partition: Partition,
    offset: Offset,
    as_json: AsJson = False,
) -> None:
    """Show one record: original payload, fix, reasons, and all decisions with author, time and reason."""

    reading, decided = pinned(), decided_records(load_settings(), dataset)
    _datasets(reading, dataset)
    where = RejectedFilter(offsets={partition: (offset, offset + 1)})
    found = rejected_records(reading, dataset, where, decided)
    decided_record = decided.get((partition, offset))
    if not found and decided_record is None:
        wide_console().print("no rejected record matches")
        raise typer.Exit(FAILED)
    decisions = () if decided_record is None else decided_record.decisions
    if as_json:
        values = _values(found[0]) if found else {"status": REINSTATED, "decisions": _decisions(decisions)}
        print_json(values)
        return
    for line in _record_lines(_shown(found)[0]) if found else [f"{REINSTATED}: it is in silver.{dataset}"]:
        wide_console().print(Text(_printable(line)), soft_wrap=True)
    for decision in _decisions(decisions):
        line = f"{decision['at']}  {decision['act']} by {decision['by']}: {decision['why']}"
        wide_console().print(Text(_printable(line + (f"  {decision['payload']}" if decision["payload"] else ""))))


@app.command("summary")
def summarize_rejected(dataset: Dataset = None, as_json: AsJson = False) -> None:
    """Count rejected records by disposition and reason; a record that broke several rules counts under each."""

    reading = pinned()
    counts = [
        {"dataset": name, **row}
        for name in _datasets(reading, dataset)
        for row in reason_counts(reading, name).iter_rows(named=True)
    ]
    if as_json:
        print_json(counts)
        return
    names = ("dataset", "disposition", "rule", "column")
    rows = ((*(str(row[name] or "") for name in names), row["records"]) for row in counts)
    wide_console().print(table_of((*names, "records"), rows) if counts else "nothing was rejected")


def _datasets(reading: PinnedTables, only: str | None) -> list[str]:
    if only is None:
        return rejected_datasets(reading)
    refuse_unknown_dataset(load_settings(), only)
    reading.table(f"rejected.{only}")
    return [only]


def _values(record: RejectedRecord) -> dict[str, Any]:
    values: dict[str, Any] = json_value(asdict(replace(record, reasons=(), decisions=())))
    reasons = [asdict(reason) for reason in record.reasons]
    return values | {"reasons": reasons, "decisions": _decisions(record.decisions)}


def _decisions(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    return [{name: json_value(value) for name, value in asdict(decision).items()} for decision in decisions]


def _record_lines(record: RejectedRecord) -> list[str]:
    position = f"{record.topic}, partition {record.partition}, offset {record.offset}, batch {record.batch}"
    state = ", ".join(dict.fromkeys((record.disposition, record.status)))
    lines = [f"{position}: {state}, Kafka timestamp {iso_time(record.first_seen)}"]
    lines += [f"  {reason.rule} {reason.column}: {reason.found}" for reason in record.reasons]
    lines += ["original payload:", "  (null)" if record.payload is None else f"  {text_of(record.payload)}"]
    return lines if record.fix is None else [*lines, "fix:", f"  {text_of(record.fix)}"]


def _records_table(records: list[RejectedRecord]) -> Table:
    rows = []
    for record in records:
        reasons = "\n".join(" ".join(filter(None, (r.rule, r.column, r.detail))) for r in record.reasons)
        position = f"{record.topic}/{record.partition}/{record.offset}"
        seen, payload = iso_time(record.first_seen), excerpt(record.payload, PAYLOAD_WIDTH)
        rows.append((position, record.status, _printable(reasons), seen, payload))
    return table_of(("topic/partition/offset", "status", "reasons", "Kafka timestamp", "payload"), rows, box=HEAVY_HEAD)


def _shown(records: Sequence[RejectedRecord]) -> list[RejectedRecord]:
    """Return the records with payloads in Avro as JSON."""
    schemas = {name: known_schemas(load_settings(), name) for name in {record.dataset for record in records}}
    return [replace(each, payload=shown_payload(each.payload, schemas[each.dataset])) for each in records]


def _printable(text: str) -> str:
    """Escape control characters: details quote payloads, which must not control the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)
