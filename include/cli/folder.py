"""A dataset's folder: `headrace new`, `try`, `contract` (its declarations), `reference` (what it joins with)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from include.change.contract_check import ContractCheck, check_contracts
from include.change.jobs import JobFailed, run_job
from include.cli.main import FAILED
from include.cli.terminal import AsJson, line_console, print_json, sample_file, table_of, wide_console
from include.declare.dataset import (
    case_text,
    dataset_names,
    declared_dataset,
    expected_case,
    expected_path,
    released_dataset,
)
from include.declare.dataset_checks import checked_dataset, validate_datasets
from include.declare.derived_dataset import all_dataset_names, declared_contract
from include.declare.inferred_changes import inferred_changes, is_change
from include.declare.inferred_dataset import InferredDataset, InferredField, inferred_dataset
from include.declare.reference_tables import current_versions, load_reference, read_version
from include.declare.row_expectations import NOT_PER_RECORD, ROW_EXPECTATIONS, TABLE_EXPECTATIONS
from include.declare.sample_records import RecordSample, file_sample, topic_sample
from include.declare.scaffold import refuse_name, write_folder
from include.ground.errors import Refused
from include.ground.settings import CLONE, Settings, load_settings
from include.read.plain_values import text_value
from include.read.publication import find_publication
from include.run.child_process import refuse_running
from include.state.run_files import bootstrap_servers


def new(
    dataset: Annotated[str, typer.Argument(help="The name of the new dataset: its folder and its tables.")],
    sample: Annotated[
        Path | None,
        typer.Option("--from", parser=sample_file, metavar="FILE", help="Infer the dataset from a file of JSON lines."),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(help="The dataset's topic; without --from, infer the dataset from it. (default: DATASET)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the folder of a new dataset, inferred from a sample: contract, pipeline, silver.py, gold, a case.

    Every guess has a comment. Nothing is started, and no topic is created.
    """
    if sample is None and topic is None:
        raise typer.BadParameter("give a sample: --from FILE.jsonl, or --topic T to read one", param_hint="--from")
    settings = load_settings()
    refuse_name(settings, dataset)
    records = _sample(settings, sample, topic)
    infer = inferred_changes if all(map(is_change, records.fields)) else inferred_dataset
    found = infer(dataset, topic or dataset, records, datetime.now(UTC))
    written = write_folder(settings, found, records)
    if as_json:
        print_json({"folder": written, **asdict(found)})
    else:
        _show_folder(settings, found, written, sample)
    validate_datasets(settings, [dataset])


def _sample(settings: Settings, file: Path | None, topic: str | None) -> RecordSample:
    return file_sample(file) if file is not None else topic_sample(bootstrap_servers(settings), str(topic))


def _show_folder(settings: Settings, dataset: InferredDataset, written: Path, sample: Path | None) -> None:
    line = line_console().print

    line(f"{_relative(written)}: inferred from {dataset.records:,} records of {dataset.origin}")
    for text in (each for field in dataset.fields for each in _field_lines(dataset, field)):
        line(text)
    for name, why in dataset.left_out.items():
        line(f"  left out: {name} {why}")
    for fault, count in dataset.unusual.items():
        line(f"  not considered, unlike nearly all other records: {fault} ({count:,})")
    line(f"event time: {dataset.event_time}; primary key ({', '.join(dataset.identity)}): {dataset.identity_reason}")
    given = "" if sample is None else f" {_relative(sample)}"
    line(f"next: headrace try {dataset.name}{given}")
    line("      what contract, silver.py and gold make of it")
    line(f"      headrace up {dataset.name}")
    if sample is None:
        line(f"      reads topic {dataset.topic} from its start")
    else:
        line(f"      headrace produce --file{given} --topic {dataset.topic}")


def _field_lines(dataset: InferredDataset, field: InferredField, indent: str = "  ") -> Iterator[str]:
    facts = [field.type, *([f"read from {field.member}"] if field.name and field.member != field.name else [])]
    facts += ["required" if field.required else "optional"]
    facts += ["primary key"] if field.around == 0 and field.name in dataset.identity else []
    facts += [f"one of {', '.join(field.values)}"] if field.values else []
    facts += [f"seen: {', '.join(field.seen)} (others are accepted too)"] if field.seen else []
    facts += [str(field.form)] if field.form else []
    yield f"{indent}{field.name or 'each'}: {', '.join(facts)}"
    for each in field.fields:
        yield from _field_lines(dataset, each, f"{indent}  ")


def _relative(path: Path) -> Path:
    return path.relative_to(CLONE) if path.is_relative_to(CLONE) else path


SHOWN_REJECTED = 20
Tried = Mapping[str, Any]


def try_sample(
    dataset: Annotated[str, typer.Argument(help="The dataset, by its folder as it is now.")],
    sample: Annotated[
        Path | None,
        typer.Argument(parser=sample_file, help="Records, one per line. (default: the cases of the folder)"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One object per sample.")] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Store the results of the cases as their expected results.")
    ] = False,
    watching: Annotated[
        bool, typer.Option("--watch", help="Again after each edit of the folder or the sample, until Ctrl-C.")
    ] = False,
) -> None:
    """Run a folder's contract, silver.py and gold over sample records: accepted, rejected with reasons, gold rows.

    It needs no broker and changes no table. Without SAMPLE it runs the folder's cases (cases/*.jsonl) and exits 1 when
    a result differs from its .expected.json. With --watch, Spark stays open: an edit is tried within seconds.
    """
    if watching and accept:
        raise Refused("--accept stores results once, and --watch goes on", f"headrace try {dataset} --accept")
    settings = load_settings()
    folder = checked_dataset(settings, dataset).folder
    files = [sample] if sample is not None else sorted(folder.glob("cases/*.jsonl"))
    if not files:
        what = f"{dataset}: there is no case in {folder / 'cases'}"
        raise Refused(what, f"headrace try {dataset} SAMPLE.jsonl", code="nothing-to-try")
    console, failed = wide_console(), False

    def show(file: Path, tried: Tried) -> None:
        nonlocal failed
        if as_json:
            print_json({"sample": str(file), **tried}, indent=None)
        else:
            show_tried(console, dataset, file, tried)
        if sample is None:
            failed |= not _is_expected(console, file, tried, accept=accept, quiet=as_json)

    run_samples(
        settings, dataset, files, show, partial(_show_round, Console(stderr=True), folder) if watching else None
    )
    if failed:
        raise typer.Exit(1)


def run_samples(
    settings: Settings,
    dataset: str,
    files: Sequence[Path],
    show: Callable[[Path, Tried], object],
    end_round: Callable[[str, str], None] | None = None,
) -> None:
    """Show what the folder makes of each sample. Raises JobFailed.

    With `end_round`, which gets why a round failed, else "", and the remedy: again after each edit, until a signal.
    """

    def report(facts: Mapping[str, Any]) -> None:
        if "tried" in facts:
            show(Path(facts["sample"]), facts["tried"])
        elif "watched" in facts and end_round is not None:
            end_round(facts["watched"], facts["remedy"])

    name = f"try-{dataset}"
    refuse_running(settings, name)
    how = "once" if end_round is None else "watch"
    job = ("spark_jobs.jobs.sample_job", dataset, how, *(str(file.resolve()) for file in files))
    last = run_job(settings, name, dataset, job, report, f"headrace try {dataset}")
    if "failed" in last:
        raise JobFailed(name, str(last["failed"]), str(last.get("remedy", "")))


def _show_round(console: Console, folder: Path, why: str, remedy: str) -> None:
    for line in filter(None, (why, remedy and f"→ {remedy}")):
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"watching {_relative(folder)}: save a file to try it again, Ctrl-C ends this", style="dim", highlight=False
    )


def _is_expected(console: Console, case: Path, tried: Tried, *, accept: bool, quiet: bool) -> bool:
    rejected = {str(each["line"]): [reason["rule"] for reason in each["reasons"]] for each in tried["rejected"]}
    gold = {name: table["first"] for name, table in tried["gold"].items()}
    if accept:
        expected_path(case).write_text(case_text(rejected, gold), "utf-8")
        return True
    expected = expected_case(case)
    differences = [] if expected is None else expected.differences(rejected, gold)
    if not quiet:
        verdict = "no expectation: --accept writes it" if expected is None else "as expected"
        for line in differences or [verdict]:
            style = "red" if differences else ""
            console.print(f"  case {case.stem}: {line}", style=style, markup=False, soft_wrap=True)
    return not differences


def show_tried(console: Console, dataset: str, file: Path, tried: Tried) -> None:
    """Print what a folder made of a sample."""
    rejected = tried["records"] - tried["accepted"]
    counts = f"{tried['records']:,} records, {tried['accepted']:,} accepted, {rejected:,} rejected"
    console.print(f"[bold]{dataset}[/] from {file.name}: {counts}")
    for each in tried["rejected"][:SHOWN_REJECTED]:
        reasons = "; ".join(_reason(reason) for reason in each["reasons"])
        console.print(f"  line {each['line']}: {reasons}", style="red", markup=False, soft_wrap=True)
        console.print(f"    {each['record']}", style="dim", markup=False, soft_wrap=True)
    if rejected > SHOWN_REJECTED:
        by_reason = ", ".join(f"{name} {count:,}" for name, count in tried["reasons"].items())
        console.print(f"  and {rejected - SHOWN_REJECTED:,} more; by reason: {by_reason}")
    _rows(console, f"silver.{dataset}", tried["accepted"], tried["silver"][:5])
    for name, table in tried["gold"].items():
        _rows(console, name, table["rows"], table["first"])


def _reason(reason: Mapping[str, Any]) -> str:
    if reason["rule"] == "duplicate":
        # The detail is batch/partition/offset of the first record; an offset of a sample is its line, from 0.
        return f"duplicate of line {int(reason['detail'].rpartition('/')[2]) + 1} by {reason['column']}"
    detail = f" ({reason['detail']})" if reason["detail"] not in (None, "") else ""
    return f"{reason['rule']}{' of ' if reason['column'] else ''}{reason['column']}{detail}"


def _rows(console: Console, name: str, count: int, rows: Sequence[Mapping[str, Any]]) -> None:
    shown = table_of(tuple(rows[0]) if rows else (), ([text_value(value) for value in row.values()] for row in rows))
    first = f", the first {len(rows)}" if len(rows) < count else ""
    console.print(f"[bold]{name}[/]: {count:,} rows{first}")
    if rows:
        console.print(shown)


contract_app = typer.Typer(no_args_is_help=True, help="Contracts: check the declared rules of records and tables.")
COLOURS = {"breaking": "red", "additive": "green", "compatible": "dim"}


@contract_app.command()
def check(
    dataset: Annotated[str | None, typer.Option(help="Only this dataset. (default: all)")] = None,
    as_json: AsJson = False,
) -> None:
    """Check all files of the datasets, and compare contracts with the published ones; exit 1 when one is not valid."""
    checks = check_contracts(load_settings(), dataset)
    if not checks:
        Console(stderr=True).print("there are no datasets: include/datasets/README.md shows how to add one")
    if as_json:
        found = ({"valid": each.is_valid, "is_version_enough": each.is_version_enough} for each in checks)
        print_json([asdict(each) | more for each, more in zip(checks, found, strict=True)])
    else:
        for each in checks:
            _show_check(line_console(markup=True), each)
    if not all(each.is_valid for each in checks):
        raise typer.Exit(FAILED)


@contract_app.command()
def rules(
    dataset: Annotated[str | None, typer.Option(help="Only this dataset. (default: all)")] = None,
    as_json: AsJson = False,
) -> None:
    """List the rules of contracts, what each validates and its action; then all known expectations."""
    settings, console = load_settings(), line_console(markup=True)
    found = [
        (name, table, rule)
        for name in (all_dataset_names(settings) if dataset is None else [dataset])
        for contract in [declared_contract(settings, name)]
        for table, rules in {f"silver.{name}": contract.rules, **contract.gold}.items()
        for rule in rules
    ]
    if as_json:
        print_json([{"dataset": name, "table": table, **asdict(rule)} for name, table, rule in found])
        return
    for name, table, rule in found:
        where = "each record" if rule.validates_records else f"{table} as a whole"
        about = ", ".join(rule.columns) or "rows"
        line = f"{name}: {rule.name}: {rule.action}, {where}: {rule.expectation} of {about}"
        console.print(line, highlight=False, markup=False)
    console.print("\neach record (reject, warn):", *sorted(ROW_EXPECTATIONS), sep="\n  ")
    console.print(
        "tables as a whole (warn, hold, fail): these and", *sorted(TABLE_EXPECTATIONS), sep="\n  ", highlight=False
    )
    console.print(
        "no record:", *(f"{name}: {why}" for name, why in NOT_PER_RECORD.items()), sep="\n  ", highlight=False
    )


def _show_check(console: Console, each: ContractCheck) -> None:
    mark = "[green]valid[/]" if each.is_valid else "[red]not valid[/]"
    version = f" {each.version}" if each.version else ""
    console.print(f"[bold]{escape(each.dataset)}[/]{version}: {mark}")
    for line in filter(None, [*each.problems, each.not_checked, each.registry]):
        console.print(f"  {line}", highlight=False, markup=False)
    for change in each.changes:
        colour = COLOURS[change.kind]
        console.print(f"  [{colour}]{change.kind}[/]  {escape(change.part)}: {escape(change.why)}")
    if each.base is not None and not each.changes:
        console.print(f"  the contract is that of release {each.base}")
    if each.version_problem:
        console.print(f"  {each.version_problem}")
        console.print(f"  → version: {each.required_version} in {each.dataset}/contract.yaml")
    elif each.changes:
        console.print(
            f"  → headrace release plan --dataset {each.dataset}   (takes effect with a release)", highlight=False
        )


reference_app = typer.Typer(no_args_is_help=True, help="Reference tables that events are joined with: list, load.")
DATASET = typer.Option("--dataset", help="The dataset of the table.")


@reference_app.command("list")
def list_tables(as_json: AsJson = False) -> None:
    """List the declared reference tables, with version and rows; the stream creates missing ones at its start."""
    settings, found = load_settings(), []
    for name in dataset_names(settings):
        versions = current_versions(settings, name)
        for table in declared_dataset(settings, name).pipeline.reference:
            version = versions.get(table.name)
            rows = None if version is None else read_version(settings, name, table, version).num_rows
            keys = ", ".join(table.keys)
            found.append({"dataset": name, "table": table.name, "keys": keys, "version": version, "rows": rows})
    if as_json:
        print_json(found)
        return
    columns = ("dataset", "table", "keys", "version", "rows")
    wide_console().print(table_of(columns, ([row[name] for name in columns] for row in found)))


@reference_app.command("load")
def load(
    table: Annotated[str, typer.Argument(help="The table, as pipeline.yaml names it.")],
    file: Annotated[Path, typer.Argument(help="CSV with a header; it becomes the whole table.")],
    dataset: Annotated[str, DATASET],
    as_json: AsJson = False,
) -> None:
    """Load a file as the next version of a table, used from the next batch on; older batches are unchanged."""
    settings = load_settings()
    published, folder = find_publication(settings, dataset), declared_dataset(settings, dataset)
    # The running release joins it: the released declaration applies, not the folder's.
    declared = released_dataset(settings, dataset, published.release) if published else folder
    done = load_reference(settings, declared, table, file)
    if as_json:
        print_json(done)
        return
    what = f"version {done.version}" if done.is_new else f"already has these rows, as version {done.version}"
    line_console(markup=True).print(f"{dataset}, {table}: {what}, {done.rows:,} rows")
    if done.is_new:
        line_console(markup=True).print(
            f"older batches are unchanged; headrace backfill run --dataset {dataset} --from … --to … "
            "--reference today recomputes them",
            highlight=False,
        )
