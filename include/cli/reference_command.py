"""`headrace reference`: reference tables and their versions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from include.cli.option_types import AsJson
from include.cli.wide_console import wide_console
from include.declare.dataset import dataset_names, declared_dataset, released_dataset
from include.declare.reference_tables import current_versions, load_reference, read_version
from include.ground.settings import load_settings
from include.read.publication import find_publication

app = typer.Typer(no_args_is_help=True, help="Reference tables that events are joined with: list, load.")
DATASET = typer.Option("--dataset", help="The dataset of the table.")


@app.command("list")
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
        json.dump(found, sys.stdout, indent=1)
        sys.stdout.write("\n")
        return
    shown = Table("dataset", "table", "keys", "version", "rows")
    for row in found:
        shown.add_row(*("" if value is None else str(value) for value in row.values()))
    wide_console().print(shown)


@app.command("load")
def load(
    table: Annotated[str, typer.Argument(help="The table, as pipeline.yaml names it.")],
    file: Annotated[Path, typer.Argument(help="CSV with a header; it becomes the whole table.")],
    dataset: Annotated[str, DATASET],
) -> None:
    """Load a file as the next version of a table, used from the next batch on; older batches are unchanged."""

    settings = load_settings()
    published, folder = find_publication(settings, dataset), declared_dataset(settings, dataset)
    # The running release joins it: the released declaration applies, not the folder's.
    declared = released_dataset(settings, dataset, published.release) if published else folder
    done = load_reference(settings, declared, table, file)
    what = f"version {done.version}" if done.is_new else f"already has these rows, as version {done.version}"
    Console(soft_wrap=True).print(f"{dataset}, {table}: {what}, {done.rows:,} rows", highlight=False)
    if done.is_new:
        Console(soft_wrap=True).print(
            f"older batches are unchanged; headrace backfill run --dataset {dataset} --from … --to … "
            "--reference today recomputes them",
            highlight=False,
        )
