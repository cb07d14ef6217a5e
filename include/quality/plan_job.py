"""The job that asks a plan's built tables the rules of their contract.

Reads: the plan's tables. Writes: nothing. Does not: decide what follows from it.

Usage: python -m include.quality.plan_job PLAN. Prints one JSON object: `checks`, or why there are none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from include.errors import HeadraceError
from include.planning.checks import asked_rules
from include.planning.journal import load_plan
from include.planning.sides import both_sides
from include.quality.checkpoint import check_tables
from include.quality.installed import QualityNotInstalled
from include.settings import Settings, load_settings


def asked(settings: Settings, plan: str) -> dict[str, Any]:
    """Return what the built tables of a plan answer."""
    record = load_plan(settings, plan)
    _, built = both_sides(settings, record)
    tables = {name: (built[1][name], rules) for name, rules in asked_rules(record.plan, built).items()}
    return {"checks": [check.as_json() for check in check_tables(tables)]}


def main(arguments: Sequence[str]) -> int:
    """Ask; return 0 answered, 2 refused."""
    (plan,) = arguments
    try:
        said = asked(load_settings(), plan)
    except QualityNotInstalled as error:
        said = {"failed": error.what, "not_installed": error.package}
    except HeadraceError as error:
        said = {"failed": error.what}
    print(json.dumps(said))
    return 0 if "checks" in said else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
