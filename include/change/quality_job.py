"""The job that evaluates the contract's table rules on a plan's built tables.

Usage: python -m include.change.quality_job PLAN. Prints one JSON object: `checks`, or `failed` with the reason.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from os import getpid
from typing import Any
from uuid import uuid4

from include.change.checkpoint import validate_tables
from include.change.compare import Rows, Side, key_columns
from include.change.quality import RESULTS, table_rules
from include.change.stages import kind_of
from include.declare.contract_rules import Rule, RuleResult, referenced_columns
from include.declare.row_expectations import ROW_EXPECTATIONS
from include.ground.errors import HeadraceError
from include.ground.optional_packages import QualityNotInstalled
from include.ground.record_coordinates import POSITION
from include.ground.settings import Settings, load_settings
from include.ground.sql_quoting import sql_identifier, sql_literal
from include.plans.journal import load_plan
from include.plans.plan import PlanRecord
from include.read.memory_database import memory_database, spill_folder
from include.read.publication import read_publication, tables_of
from include.read.published_tables import open_dataset


def validate_plan(settings: Settings, plan: str) -> list[RuleResult]:
    """Return the results of all rules of a plan's built tables."""
    return [result for part in load_plan(settings, plan).parts for result in _validate_part(settings, part)]


def _validate_part(settings: Settings, record: PlanRecord) -> list[RuleResult]:
    kind = kind_of(record.plan)
    sides = kind.sides(settings, record)
    built = sides[1]
    rules = table_rules(built)
    if kind.builds_whole_tables:
        return validate_tables({name: (built.tables[name], found) for name, found in rules.items()})
    results = validate_tables(
        {name: (built.tables[name], list(filter(_is_row_rule, found))) for name, found in rules.items()}
    )
    for name, found in rules.items():
        rest = [rule for rule in found if not _is_row_rule(rule)]
        results += validate_with_slice(settings, sides, name, rest) if rest else []
    return results


def validate_with_slice(
    settings: Settings, sides: tuple[Side, Side], name: str, rules: Sequence[Rule]
) -> list[RuleResult]:
    """Return the results of a table with the slice's rows in it; a rule that fails without them does not block."""
    columns = {column for rule in rules for column in referenced_columns(rule)}
    published, with_slice = table_with_slice(settings, sides, name, columns)
    results = validate_tables({name: (with_slice, rules)})
    # Rules of several columns may share a name, so results are matched by position.
    failed = [place for place, result in enumerate(results) if result.blocks]
    before = validate_tables({name: (published, [rules[place] for place in failed])})
    for place, result in zip(failed, before, strict=True):
        if not result.passed:
            observed = f"{results[place].observed}; fails without the plan too"
            results[place] = replace(results[place], failed_before=True, observed=observed)
    return results


def table_with_slice(
    settings: Settings, sides: tuple[Side, Side], name: str, columns: Iterable[str]
) -> tuple[Rows, Rows]:
    """Return a published table, and these columns of it with the rows of a slice replaced.

    `sides`: the slice before and after.
    """
    before, after = sides
    dataset = before.dataset
    published = open_dataset(tables_of(settings, read_publication(settings, dataset.name))[name])
    records = (f"silver.{dataset.name}", f"rejected.{dataset.name}")
    keys = POSITION if name in records else key_columns(dataset, name)
    selected = [each for each in published.schema.names if each in set(columns)] or published.schema.names[:1]
    return published, _replaced(published, before.tables[name], after.tables[name], keys, selected)


def _replaced(published: Rows, before: Rows, after: Rows, keys: Sequence[str], columns: Sequence[str]) -> Rows:
    import pyarrow.dataset as pd

    same = " and ".join(
        f"published.{sql_identifier(key)} is not distinct from before.{sql_identifier(key)}" for key in keys
    )
    names = ", ".join(map(sql_identifier, columns))
    unchanged = f"select {names} from published anti join before on {same}"
    folder = spill_folder(getpid()) / uuid4().hex
    folder.mkdir(parents=True)
    with memory_database() as database:
        for view, rows in (("published", published), ("before", before), ("after", after)):
            database.register(view, rows)
        result = f"{unchanged} union all select {names} from after"
        database.execute(f"copy ({result}) to {sql_literal(str(folder / 'rows.parquet'))} (format parquet)")
    return pd.dataset(folder)


def _is_row_rule(rule: Rule) -> bool:
    """Return whether each row passes or fails by itself."""
    return rule.expectation in ROW_EXPECTATIONS and rule.mostly == 1.0


def main(arguments: Sequence[str]) -> int:
    """Print the results; return 0, or 2 when the rules could not be evaluated."""
    (plan,) = arguments
    answer: dict[str, Any]
    try:
        answer = {"checks": RESULTS.dump_python(validate_plan(load_settings(), plan), mode="json")}
    except QualityNotInstalled as error:
        answer = {"failed": error.what, "not_installed": error.package}
    except HeadraceError as error:
        answer = {"failed": error.what}
    print(json.dumps(answer))
    return 0 if "checks" in answer else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
