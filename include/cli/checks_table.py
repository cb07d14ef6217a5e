"""Checks of whole tables, as a table for people: what `headrace quality run` and comparisons of plans show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text


def checks_table(checks: Sequence[Mapping[str, Any]]) -> Table:
    """Return checks, given as `Check.as_json` has them, as a table."""
    table = Table("table", "rule", "", "action", "seen", header_style="bold", box=None)
    for check in checks:
        broken = Text("broken", "red" if check["blocks"] else "yellow")
        mark = {True: Text("kept", "green"), False: broken, None: Text("not asked", "yellow")}[check["is_kept"]]
        table.add_row(Text(check["table"]), Text(check["rule"]), mark, Text(check["action"]), Text(check["seen"]))
    return table
