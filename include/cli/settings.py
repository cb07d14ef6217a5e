"""`headrace settings`: every setting with its value."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from include.cli.terminal import AsJson, wide_console
from include.ground.settings import PREFIX, InvalidSetting, SettingInfo, list_settings, load_settings
from include.ground.settings_profiles import KNOBS, PURPOSES


def settings(
    as_json: AsJson = False,
    profiles: Annotated[
        bool, typer.Option("--profiles", help="List what each HEADRACE_PROFILE sets instead, and why.")
    ] = False,
) -> None:
    """List every setting: variable, value, where it comes from, default, meaning; exit code 2 when one is invalid.

    A variable wins over the profile (HEADRACE_PROFILE), the profile over the default.
    """
    if profiles:
        wide_console().print(profiles_table())
        return
    invalid: InvalidSetting | None = None
    try:
        load_settings()
    except InvalidSetting as error:
        invalid = error
    infos = list_settings()
    if as_json:
        typer.echo(json.dumps([as_record(info) for info in infos], indent=1))
    else:
        wide_console().print(as_table(infos))
    if invalid is not None:
        raise invalid


def as_record(info: SettingInfo) -> dict[str, str]:
    """Return a setting as JSON; `origin`: environment, profile NAME or default."""
    return {
        "name": info.name,
        "value": info.value,
        "default": info.default,
        "origin": info.origin,
        "meaning": info.meaning,
    }


def as_table(infos: list[SettingInfo]) -> Table:
    """Return the settings as a table, those that are not at their default in bold, without markup."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("setting", no_wrap=True)
    for name in ("value", "from", "default", "meaning"):
        table.add_column(name, overflow="fold")
    for info in infos:
        value = Text(info.value, "" if info.is_default else "bold")
        table.add_row(Text(info.name), value, info.origin, Text(info.default), Text(info.meaning))
    return table


def profiles_table() -> Table:
    """Return what each profile sets, and why."""
    defaults = {info.name: info.default for info in list_settings({})}
    table = Table(box=SIMPLE_HEAD, caption="\n".join(f"{name}: {purpose}" for name, purpose in PURPOSES.items()))
    for name in ("setting", *PURPOSES, "reason", "measured"):
        table.add_column(name, no_wrap=name == "setting", overflow="fold")
    for knob in KNOBS:
        setting = f"{PREFIX}{knob.setting.upper()}"
        values = (defaults[setting] if value is None else str(value) for value in (None, knob.throughput, knob.small))
        table.add_row(setting, *values, knob.reason, knob.measured)
    return table
