"""`headrace rejected`: rejected records with reasons, payloads and decisions; fix, discard, reinstate them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.box import HEAVY_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.change.kind import refuse_unknown_dataset
from include.change.plan_parameters import OFFSETS_OPTION, Option, Parameters, time_option
from include.change.reinstate import Author, ReinstateParameters, ReinstatePlan, discard, fix
from include.cli.main import FAILED
from include.cli.plan import YES, Dataset, approver, current_user, given, plan_and_run, planner, with_options
from include.cli.terminal import AsJson, Offset, Partition, print_json, table_of, wide_console
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

OneOrAll = Annotated[str | None, typer.Option("--dataset", help="Only this dataset. (default: all)")]


class FilterOptions(Parameters):
    """Which rejected records a command is about."""

    reason: Annotated[str | None, Option(help="Only records that broke this rule.")] = None
    column: Annotated[str | None, Option(help="Only records in which this column broke a rule.")] = None
    status: Annotated[
        Literal["open", "fixed", "discarded", "duplicate", "tombstone"] | None,
        Option(help="Only records of this status."),
    ] = None
    since: Annotated[datetime | None, time_option("--from", "First Kafka time.")] = None
    until: Annotated[datetime | None, time_option("--to", "End, exclusive.")] = None
    offsets: Annotated[dict[int, tuple[int, int]] | None, OFFSETS_OPTION] = None


@app.command("list")
@with_options(FilterOptions)
def list_rejected(
    dataset: OneOrAll = None,
    disposition: Annotated[
        Literal["invalid", "duplicate", "tombstone"] | None,
        typer.Option(help="Only invalid records, only duplicates, or only records without a value after a deletion."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of records per dataset, newest first.")] = 20,
    as_json: AsJson = False,
    **options: Any,
) -> None:
    """List rejected records with their reasons and status, newest first, and the start of their payload."""
    settings, reading = load_settings(), pinned()
    selection = RejectedFilter(disposition=disposition, **dict(given(FilterOptions, options)))
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
def show_rejected(dataset: Dataset, partition: Partition, offset: Offset, as_json: AsJson = False) -> None:
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
def summarize_rejected(dataset: OneOrAll = None, as_json: AsJson = False) -> None:
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


Why = Annotated[str, typer.Option("--why", help="The reason; stored with the decision.")]


@app.command("fix")
def fix_rejected(
    dataset: Dataset,
    partition: Partition,
    offset: Offset,
    why: Why,
    payload: Annotated[str | None, typer.Option(help="The whole record, corrected.")] = None,
    payload_file: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            readable=True,
            allow_dash=True,
            help="A file with the payload; - for standard input.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Store a corrected payload for one record, to be validated instead of the original; bronze is unchanged."""
    if (payload is None) == (payload_file is None):
        raise typer.BadParameter("give one of --payload and --payload-file")
    data = payload.encode() if payload is not None else _read(payload_file)
    new = fix(load_settings(), dataset, {(partition, offset): data}, _author(why))
    if as_json:
        print_json({"fixed": bool(new), "partition": partition, "offset": offset})
        return
    console = Console()
    console.print("fixed" if new else "the record already has this fix", highlight=False)
    again = f"--dataset {dataset} --offsets '{{\"{partition}\": [{offset}, {offset + 1}]}}'"
    console.print(f"next: headrace rejected reinstate {again}", highlight=False, markup=False, soft_wrap=True)


@app.command("discard")
@with_options(FilterOptions)
def discard_rejected(
    dataset: Dataset, why: Why, yes: Annotated[bool, YES] = False, as_json: AsJson = False, **options: Any
) -> None:
    """Discard records: they stay out of silver even if later code or contracts would accept them."""
    selection = _record_filter(options)
    if not approver(yes)(f"Discard these records of {dataset} until they are reinstated?"):
        raise typer.Exit(FAILED)
    count = discard(load_settings(), dataset, selection, _author(why))
    if as_json:
        print_json({"discarded": count})
    else:
        Console().print(f"{count:,} records discarded", highlight=False)


@app.command("reinstate")
@with_options(FilterOptions, ReinstateParameters)
def reinstate_rejected(
    dataset: Dataset, yes: Annotated[bool, YES] = False, json_: AsJson = False, **options: Any
) -> None:
    """Validate records again, with their fixes and the published release; valid ones are added to silver.

    It is a plan like any other: built, compared, approved, applied. Discarded records are included only when
    --status discarded or --offsets names them.
    """
    selection = _record_filter({name: options.pop(name) for name in FilterOptions.names()})
    plan_and_run(planner(ReinstatePlan(), dataset, {**options, "records": selection}), yes, json_)


def _record_filter(options: Mapping[str, Any]) -> RejectedFilter:
    """Return the filter. Raises typer.BadParameter without a condition."""
    if all(value is None for value in options.values()):
        raise typer.BadParameter("select records with --reason, --column, --status, --from, --to or --offsets")
    return RejectedFilter(**dict(given(FilterOptions, options)))


def _author(why: str) -> Author:
    return Author(current_user(), datetime.now(UTC), why)


def _read(path: Path | None) -> bytes:
    assert path is not None
    return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
