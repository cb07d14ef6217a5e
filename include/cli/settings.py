"""`headrace settings`: every setting with its value."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from include.cli.terminal import AsJson, print_json, table_of, wide_console
from include.ground.settings import PREFIX, InvalidSetting, list_settings, load_settings
from include.ground.settings_profiles import KNOBS, PURPOSES, Knob


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
        wide_console().print(_profiles_table())
        return
    invalid: InvalidSetting | None = None
    try:
        load_settings()
    except InvalidSetting as error:
        invalid = error
    infos = list_settings()
    if as_json:
        names = ("name", "value", "default", "origin", "meaning")
        print_json([{name: getattr(info, name) for name in names} for info in infos])
    else:
        rows = ((i.name, Text(i.value, "" if i.is_default else "bold"), i.origin, i.default, i.meaning) for i in infos)
        wide_console().print(table_of(("setting", "value", "from", "default", "meaning"), rows))
    if invalid is not None:
        raise invalid


def _profiles_table() -> Table:
    defaults = {info.name: info.default for info in list_settings({})}

    def values(knob: Knob) -> tuple[str, ...]:
        setting = f"{PREFIX}{knob.setting.upper()}"
        chosen = (defaults[setting] if value is None else str(value) for value in (None, knob.throughput, knob.small))
        return (setting, *chosen, knob.reason, knob.measured)

    purposes = "\n".join(f"{name}: {purpose}" for name, purpose in PURPOSES.items())
    return table_of(("setting", *PURPOSES, "reason", "measured"), map(values, KNOBS), caption=purposes)
