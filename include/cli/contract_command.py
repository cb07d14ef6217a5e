"""`headrace contract`: check the declarations, and classify changes of a contract."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from include.change.contract_check import ContractCheck, check_contracts
from include.cli.exit_codes import FAILED
from include.cli.option_types import AsJson
from include.declare.derived_dataset import all_dataset_names, declared_contract
from include.declare.row_expectations import NOT_PER_RECORD, ROW_EXPECTATIONS, TABLE_EXPECTATIONS
from include.ground.settings import load_settings

app = typer.Typer(no_args_is_help=True, help="Contracts: check the declared rules of records and tables.")
COLOURS = {"breaking": "red", "additive": "green", "compatible": "dim"}


@app.callback()
def contracts() -> None:
    """Contracts: check the declared rules of records and tables."""


@app.command()
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
        typer.echo(json.dumps([asdict(each) | more for each, more in zip(checks, found, strict=True)], indent=1))
    else:
        for each in checks:
            _show(Console(soft_wrap=True), each)
    if not all(each.is_valid for each in checks):
        raise typer.Exit(FAILED)


@app.command()
def rules(
    dataset: Annotated[str | None, typer.Option(help="Only this dataset. (default: all)")] = None,
) -> None:
    """List the rules of contracts, what each validates and its action; then all known expectations."""

    settings, console = load_settings(), Console(soft_wrap=True)
    for name in all_dataset_names(settings) if dataset is None else [dataset]:
        contract = declared_contract(settings, name)
        for table, found in {f"silver.{name}": contract.rules, **contract.gold}.items():
            for rule in found:
                where = "each record" if rule.validates_records else f"{table} as a whole"
                about = ", ".join(rule.columns) or "rows"
                line = f"{name}: {rule.name}: {rule.action}, {where}: {rule.expectation} of {about}"
                console.print(line, highlight=False, markup=False)
    console.print("\neach record (reject, warn):", *sorted(ROW_EXPECTATIONS), sep="\n  ", highlight=False)
    console.print(
        "tables as a whole (warn, hold, fail): these and", *sorted(TABLE_EXPECTATIONS), sep="\n  ", highlight=False
    )
    console.print(
        "no record:", *(f"{name}: {why}" for name, why in NOT_PER_RECORD.items()), sep="\n  ", highlight=False
    )


def _show(console: Console, each: ContractCheck) -> None:
    mark = "[green]valid[/]" if each.is_valid else "[red]not valid[/]"
    version = f" {each.version}" if each.version else ""
    console.print(f"[bold]{escape(each.dataset)}[/]{version}: {mark}", highlight=False)
    for line in filter(None, [*each.problems, each.not_checked, each.registry]):
        console.print(f"  {line}", highlight=False, markup=False)
    for change in each.changes:
        colour = COLOURS[change.kind]
        console.print(f"  [{colour}]{change.kind}[/]  {escape(change.part)}: {escape(change.why)}", highlight=False)
    if each.base is not None and not each.changes:
        console.print(f"  the contract is that of release {each.base}", highlight=False)
    if each.version_problem:
        console.print(f"  {each.version_problem}", highlight=False)
        console.print(f"  → version: {each.required_version} in {each.dataset}/contract.yaml", highlight=False)
    elif each.changes:
        console.print(
            f"  → headrace release plan --dataset {each.dataset}   (takes effect with a release)", highlight=False
        )
