"""`headrace settings`: every knob there is, with its value."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.settings import InvalidSetting, SettingInfo, list_settings, load_settings


def settings(as_json: Annotated[bool, typer.Option("--json", help="print JSON for scripts")] = False) -> None:
    """List every setting: its environment variable, value, default and meaning; exit code 2 when one is refused."""

    refused: InvalidSetting | None = None
    try:
        load_settings()
    except InvalidSetting as error:
        refused = error
    knobs = list_settings()
    if as_json:
        typer.echo(json.dumps([as_record(knob) for knob in knobs], indent=1))
    else:
        Console().print(as_table(knobs))
    if refused is not None:
        raise refused


def as_record(knob: SettingInfo) -> dict[str, str | bool]:
    """A setting as JSON; `given` tells whether the environment has it."""
    return {
        "name": knob.name,
        "value": knob.value,
        "default": knob.default,
        "given": knob.given,
        "meaning": knob.meaning,
    }


def as_table(knobs: list[SettingInfo]) -> Table:
    """The settings as a table, given ones in bold; nothing in them is taken as markup."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("setting", no_wrap=True)
    for name in ("value", "default", "meaning"):
        table.add_column(name, overflow="fold")
    for knob in knobs:
        value = Text(knob.value, "bold" if knob.given else "")
        table.add_row(Text(knob.name), value, Text(knob.default), Text(knob.meaning))
    return table
