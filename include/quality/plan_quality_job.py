"""The job that asks a plan's built tables the rules of their contract.

Reads: the plan's tables. Writes: nothing. Does not: decide what follows from it.

Usage: python -m include.quality.plan_quality_job PLAN. Prints one JSON object: `checks`, or why there are none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from include.catalog.contract_rules import Rule, referenced_columns
from include.catalog.row_expectations import ROW_EXPECTATIONS
from include.errors import HeadraceError
from include.planning.comparison import Side
from include.planning.comparison_sides import table_with_slice
from include.planning.contract_checks import table_rules
from include.planning.plan_journal import load_plan
from include.planning.plan_stages import kind_of
from include.quality.gx_checkpoint import Check, validate_tables
from include.quality.quality_packages import QualityNotInstalled
from include.settings import Settings, load_settings


def validate_plan(settings: Settings, plan: str) -> dict[str, Any]:
    """Return what the built tables of a plan answer."""
    record = load_plan(settings, plan)
    kind = kind_of(record.plan)
    sides = kind.sides(settings, record)
    _, (_, rows) = sides
    rules = table_rules(sides[1])
    if kind.builds_whole_tables:
        checks = validate_tables({name: (rows[name], found) for name, found in rules.items()})
    else:
        checks = validate_tables({name: (rows[name], _of(found, a_row=True)) for name, found in rules.items()})
        whole = {name: found for name, those in rules.items() if (found := _of(those, a_row=False))}
        checks += [check for name in whole for check in validate_with_slice(settings, sides, name, whole[name])]
    return {"checks": [check.as_json() for check in checks]}


def validate_with_slice(settings: Settings, sides: tuple[Side, Side], name: str, rules: Sequence[Rule]) -> list[Check]:
    """Return what a table would answer with the slice's rows in it; what it breaks now is not the plan's doing."""
    columns = {column for rule in rules for column in referenced_columns(rule)}
    published, as_it_would_be = table_with_slice(settings, sides, name, columns)
    checks = validate_tables({name: (as_it_would_be, rules)})
    # One name may stand for a rule of several columns: what belongs together is told by its place.
    broken = [place for place, check in enumerate(checks) if check.blocks]
    before = validate_tables({name: (published, [rules[place] for place in broken])})
    for place, check in zip(broken, before, strict=True):
        if not check.is_kept:
            seen = f"{checks[place].seen}; broken without the plan too"
            checks[place] = replace(checks[place], was_broken=True, seen=seen)
    return checks


def _of(rules: Sequence[Rule], *, a_row: bool) -> list[Rule]:
    """Those that each row answers for itself, or the others."""
    return [rule for rule in rules if (rule.expectation in ROW_EXPECTATIONS and rule.mostly == 1.0) is a_row]


def main(arguments: Sequence[str]) -> int:
    """Ask; return 0 answered, 2 refused."""
    (plan,) = arguments
    try:
        said = validate_plan(load_settings(), plan)
    except QualityNotInstalled as error:
        said = {"failed": error.what, "not_installed": error.package}
    except HeadraceError as error:
        said = {"failed": error.what}
    print(json.dumps(said))
    return 0 if "checks" in said else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
