"""`headrace maintain`: compact small files, delete old ones, trim logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from include.change.jobs import TableMaintenance, maintain_tables
from include.cli.exit_codes import FAILED
from include.cli.option_types import AsJson
from include.cli.wide_console import wide_console
from include.ground.errors import HeadraceError, Terminal, Transient
from include.ground.settings import load_settings
from include.observe.ended_plans import EndedData, remove_ended
from include.read.publication import publications
from include.run.log_trimming import trim_logs


def maintain(
    dataset: Annotated[str | None, typer.Option("--dataset", help="Only this dataset. (default: all)")] = None,
    as_json: AsJson = False,
) -> None:
    """Compact all tables, delete old files, releases and plan rows, trim logs; exit 1 when a dataset was skipped.

    The stream does it between two runs; without a stream a separate job does. Skipped while a plan is open.
    """

    settings = load_settings()
    done: list[TableMaintenance] = []
    ended: list[EndedData] = []
    skipped: dict[str, HeadraceError] = {}
    for name in [dataset] if dataset else publications(settings):
        try:
            ended += remove_ended(settings, name, datetime.now(UTC))
        except HeadraceError as error:
            skipped[name] = error
        try:
            done += maintain_tables(settings, name)
        except Transient as error:
            skipped[name] = error
        except Terminal as error:
            if dataset:
                raise
            skipped[name] = error
    logs = trim_logs(settings, datetime.now(UTC))
    if as_json:
        why = {name: error.what for name, error in skipped.items()}
        removed = [{"policy": each.policy, "path": each.path, "bytes": each.bytes} for each in ended]
        found = {"tables": [asdict(each) for each in done], "removed": removed, "logs": asdict(logs)}
        typer.echo(json.dumps({**found, "left_alone": why}))
    else:
        console = wide_console()
        console.print(maintained_table(done))
        for each in ended:
            line = f"removed {escape(each.path)}: ended {each.ended:%Y-%m-%d %H:%M} UTC, {each.bytes:,} bytes"
            console.print(f"{line} (retention.{each.policy})", highlight=False, soft_wrap=True)
        console.print(f"logs: {logs.trimmed} trimmed, {logs.removed} removed", highlight=False)
        for refused in skipped.values():
            console.print(f"[yellow]skipped[/]: {escape(str(refused))}", highlight=False, soft_wrap=True)
    if skipped:
        raise typer.Exit(FAILED)


def maintained_table(done: Sequence[TableMaintenance]) -> Table:
    """Return the result, one row per table."""
    shown = Table("table", "files", "now", "deleted", "left for the next run", header_style="bold", box=None)
    for each in done:
        shown.add_row(escape(each.table), *(f"{n:,}" for n in (each.files, each.now, each.removed, each.left)))
    for column in shown.columns[1:]:
        column.justify = "right"
    return shown
