"""`headrace try`: run a dataset's folder over a sample, without a broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.change.jobs import JobFailed, run_job
from include.cli.option_types import sample_file
from include.cli.wide_console import wide_console
from include.declare.dataset_cases import case_files, case_text, expected_case, expected_path
from include.declare.dataset_checks import checked_dataset
from include.ground.errors import Terminal
from include.ground.settings import Settings, load_settings
from include.read.plain_values import text_value
from include.run.job_process import refuse_running

SHOWN_REJECTED = 20
Tried = Mapping[str, Any]


class NothingToTry(Terminal):
    """No sample was given, and the dataset's folder has no case."""

    def __init__(self, dataset: str, folder: Path) -> None:
        super().__init__(f"{dataset}: there is no case in {folder / 'cases'}", f"headrace try {dataset} SAMPLE.jsonl")
        self.dataset = dataset


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
) -> None:
    """Run a folder's contract, silver.py and gold over sample records: accepted, rejected with reasons, gold rows.

    It needs no broker and changes no table. Without SAMPLE it runs the folder's cases (cases/*.jsonl) and exits 1 when
    a result differs from its .expected.json.
    """

    settings = load_settings()
    folder = checked_dataset(settings, dataset).folder
    files = [sample] if sample is not None else case_files(folder)
    if not files:
        raise NothingToTry(dataset, folder)
    console, failed = wide_console(), False
    for file, tried in zip(files, _tried(settings, dataset, files), strict=True):
        if as_json:
            sys.stdout.write(json.dumps({"sample": str(file), **tried}, ensure_ascii=False) + "\n")
        else:
            _show(console, dataset, file, tried)
        if sample is None:
            failed |= not _is_expected(console, file, tried, accept=accept, quiet=as_json)
    if failed:
        raise typer.Exit(1)


def _tried(settings: Settings, dataset: str, files: Sequence[Path]) -> list[Tried]:
    """Run the job over the samples. Raises JobFailed."""
    name, found = f"try-{dataset}", list[Tried]()
    refuse_running(settings, name)

    def report(facts: Mapping[str, Any]) -> None:
        if "tried" in facts:
            found.append(facts["tried"])

    job = ("spark_jobs.jobs.sample_job", dataset, *(str(file.resolve()) for file in files))
    last = run_job(settings, name, dataset, job, report, f"headrace try {dataset}")
    if "failed" in last:
        raise JobFailed(name, str(last["failed"]), str(last.get("remedy", "")))
    return found


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


def _show(console: Console, dataset: str, file: Path, tried: Tried) -> None:
    rejected = tried["records"] - tried["accepted"]
    counts = f"{tried['records']:,} records, {tried['accepted']:,} accepted, {rejected:,} rejected"
    console.print(f"[bold]{dataset}[/] from {file.name}: {counts}", highlight=False)
    for each in tried["rejected"][:SHOWN_REJECTED]:
        reasons = "; ".join(_reason(reason) for reason in each["reasons"])
        console.print(f"  line {each['line']}: {reasons}", style="red", markup=False, highlight=False, soft_wrap=True)
        console.print(f"    {each['record']}", style="dim", markup=False, highlight=False, soft_wrap=True)
    if rejected > SHOWN_REJECTED:
        by_reason = ", ".join(f"{name} {count:,}" for name, count in tried["reasons"].items())
        console.print(f"  and {rejected - SHOWN_REJECTED:,} more; by reason: {by_reason}", highlight=False)
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
    shown = Table(header_style="bold", box=None)
    for column in rows[0] if rows else ():
        shown.add_column(Text(column), overflow="fold")
    for row in rows:
        shown.add_row(*(Text(text_value(value)) for value in row.values()))
    first = f", the first {len(rows)}" if len(rows) < count else ""
    console.print(f"[bold]{name}[/]: {count:,} rows{first}", highlight=False)
    if rows:
        console.print(shown)
