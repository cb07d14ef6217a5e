"""Results of table rules in the terminal: what `headrace quality run` and comparisons print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from include.declare.contract_rules import RuleResult


def checks_table(checks: Sequence[RuleResult]) -> Table:
    """Return the results as a table, one rule per row."""
    table = Table(header_style="bold", box=None, collapse_padding=True, pad_edge=False)
    for name in ("table", "rule", "action", "result", "observed"):
        table.add_column(name, overflow="fold")
    for check in checks:
        colour = "green" if check.passed else "red" if check.blocks else "yellow"
        cells = map(Text, (check.table, check.rule, check.action))
        table.add_row(*cells, Text(check.outcome, colour), Text(check.observed))
    return table
