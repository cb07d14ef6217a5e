"""`headrace audit`: is every Kafka record accounted for?"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from include.cli.query_command import wide_console

if TYPE_CHECKING:
    from include.audit.balance import DatasetAudit
    from include.settings import Settings

SHOWN_FINDINGS = 20


def audit(
    dataset: Annotated[str | None, typer.Option("--dataset", help="Only this dataset. [default: all]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The whole result, every finding with its range.")] = False,
) -> None:
    """Count Kafka, bronze, silver, rejected and gold from outside; exit 0 balanced, 1 not, 2 nothing was judged."""
    from include.audit.audit_run import audit_dataset, audited_datasets
    from include.audit.kafka_records import open_topic
    from include.settings import load_settings

    settings = load_settings()
    names, bootstrap = audited_datasets(settings, dataset), _bootstrap(settings)
    with Console(stderr=True).status("audit") as shown:
        opener = partial(open_topic, bootstrap)
        audits = [audit_dataset(settings, name, opener, shown.update) for name in names]
    if as_json:
        json.dump(_values(audits), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        print_audits(audits)
    raise typer.Exit(0 if all(each.balanced for each in audits) else 1)


def _bootstrap(settings: Settings) -> str:
    from include.audit.kafka_records import AuditUnavailable
    from include.state.run_files import read_run_file

    run = read_run_file(settings, "broker")
    if run is None:
        raise AuditUnavailable("no broker was started for this state folder")
    return str(run.extra["bootstrap"])


def _values(audits: list[DatasetAudit]) -> dict[str, Any]:
    datasets = [{**asdict(each), "balanced": each.balanced} for each in audits]
    return {"balanced": all(each.balanced for each in audits), "datasets": datasets}


def print_audits(audits: list[DatasetAudit]) -> None:
    """Print the balance of each dataset, its gold tables, what is wrong first, and the verdict."""
    console = wide_console()
    for each in audits:
        console.print(_balance_table(each) if each.partitions else f"{each.dataset}: no topic, nothing published yet")
        for check in each.gold:
            wrong = any(finding.table == check.table for finding in each.findings)
            verdict = "[red]not what silver gives[/]" if wrong else "equal to silver recomputed"
            console.print(f"  {check.table}: {check.rows:,} rows, {check.grains:,} grains, {verdict}", highlight=False)
        _print_findings(console, each)
    first = next((finding for each in audits for finding in each.findings), None)
    if first is not None:
        said = escape(first.sentence())
        console.print(f"[bold red]not balanced[/]; the first: {said}", highlight=False, soft_wrap=True)
    elif all(each.batch is None for each in audits):
        console.print("nothing is published yet, so nothing can be out of balance")
    else:
        console.print("[bold green]balanced[/]")


def _print_findings(console: Console, audit: DatasetAudit) -> None:
    for finding in audit.findings[:SHOWN_FINDINGS]:
        console.print(f"  {finding.sentence()} ({finding.rows:,})", style="red", highlight=False, markup=False)
    if len(audit.findings) > SHOWN_FINDINGS:
        console.print(f"  and {len(audit.findings) - SHOWN_FINDINGS:,} more: headrace audit --json")


def _balance_table(audit: DatasetAudit) -> Table:
    published = "nothing published yet" if audit.batch is None else f"release {audit.release}, batch {audit.batch}"
    expired = any(each.expired for each in audit.partitions)
    columns = ["partition", "end offset", "Kafka", "bronze", "silver", "rejected", "not yet published"]
    table = Table(title=f"{audit.dataset}: {published}", title_justify="left", header_style="bold")
    for name in columns + ["expired in Kafka, kept in bronze"] * expired:
        table.add_column(name, justify="right")
    for p in audit.partitions:
        numbers = [p.partition, p.published_end, p.kafka, p.bronze, p.silver, p.rejected, p.later]
        table.add_row(*(f"{number:,}" for number in numbers + [p.expired] * expired))
    return table
