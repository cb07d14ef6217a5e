"""`headrace settings`: every setting with its value."""

from __future__ import annotations

import json

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.cli.option_types import AsJson
from include.setting_list import SettingInfo, list_settings
from include.settings import InvalidSetting, load_settings


def settings(as_json: AsJson = False) -> None:
    """List every setting: its environment variable, value, default and meaning; exit code 2 when one is invalid."""

    invalid: InvalidSetting | None = None
    try:
        load_settings()
    except InvalidSetting as error:
        invalid = error
    infos = list_settings()
    if as_json:
        typer.echo(json.dumps([as_record(info) for info in infos], indent=1))
    else:
        Console().print(as_table(infos))
    if invalid is not None:
        raise invalid


def as_record(info: SettingInfo) -> dict[str, str | bool]:
    """Return a setting as JSON; `given`: the environment has it."""
    return {
        "name": info.name,
        "value": info.value,
        "default": info.default,
        "given": info.given,
        "meaning": info.meaning,
    }


def as_table(infos: list[SettingInfo]) -> Table:
    """Return the settings as a table, given ones in bold, without markup."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("setting", no_wrap=True)
    for name in ("value", "default", "meaning"):
        table.add_column(name, overflow="fold")
    for info in infos:
        value = Text(info.value, "bold" if info.given else "")
        table.add_row(Text(info.name), value, Text(info.default), Text(info.meaning))
    return table
