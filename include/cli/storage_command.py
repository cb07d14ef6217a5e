"""`headrace storage`: bytes on disk by dataset, release and table, and what the next clean-up frees."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from include.cli.option_types import AsJson
from include.cli.wide_console import wide_console
from include.ground.settings import load_settings
from include.observe.disk_use import PartUse, disk_use

COUNTS = ("current", "replaced", "log", "deletable")


def storage(
    dataset: Annotated[str | None, typer.Argument(help="Only this dataset. (default: the whole state folder)")] = None,
    as_json: AsJson = False,
) -> None:
    """Show bytes by dataset, release and table: current files, replaced ones, logs, and what is deleted next.

    Unused data is kept for the `retention` of pipeline.yaml or derived.yaml; then the stream deletes it (`next`).
    """

    parts = disk_use(load_settings(), dataset)
    if as_json:
        rows = [asdict(use.part) | {name: getattr(use, name) for name in COUNTS} for use in parts]
        for row in rows:
            row.pop("table")
        typer.echo(json.dumps({"parts": rows, "total": sum(use.total for use in parts)}))
        return
    wide_console().print(storage_table(parts))


def storage_table(parts: Sequence[PartUse]) -> Table:
    """Return the parts as a table, with a line of totals."""
    shown = Table(header_style="bold", box=None, pad_edge=False, collapse_padding=True)
    for name in ("dataset", "release", "part"):
        shown.add_column(name, no_wrap=True)
    for name in ("current", "replaced", "log", "next"):
        shown.add_column(name, justify="right", no_wrap=True, min_width=8)
    for use in parts:
        names = (escape(text) for text in (use.part.dataset or "–", use.part.release, use.part.name))
        shown.add_row(*names, *(_size(getattr(use, name)) for name in COUNTS))
    totals = (sum(getattr(use, name) for use in parts) for name in COUNTS)
    shown.add_section()
    shown.add_row("all", "", "", *map(_size, totals), style="bold")
    return shown


def _size(count: int) -> str:
    return decimal(count).replace(" bytes", " B").replace(" byte", " B") if count else ""
