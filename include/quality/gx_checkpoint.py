"""Evaluates table rules with Great Expectations: one in-memory context per process, on pandas.

Reads: of each table the columns that its rules refer to. Writes: Data Docs, when a folder is given.
Does not: keep anything else of a run; send telemetry.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from include.catalog.contract_rules import Rule, referenced_columns
from include.catalog.rule_results import RuleResult
from include.quality.odcs_standard import expectation
from include.quality.quality_packages import import_optional

SITE = "headrace"
# Great Expectations names the page of a table `<source>-<table>`.
SOURCE = "tables"
EXACT_IN_DOUBLE = 2**53
# Decimals of 15 digits are distinct as doubles.
EXACT_DIGITS = 10**15


class ExactDecimal(Decimal):
    """A decimal that equals the float of its shortest text: 0.1 of a rule's set is a float, and no decimal's value."""

    def __eq__(self, other: object) -> bool:
        return super().__eq__(Decimal(repr(other)) if isinstance(other, float) else other)

    def __hash__(self) -> int:
        return hash(float(self))


def validate_tables(tables: Mapping[str, tuple[Any, Sequence[Rule]]], site: Path | None = None) -> list[RuleResult]:
    """Evaluate the rules of tables: name → (pyarrow Dataset, rules); with `site`, rebuild Data Docs there.

    A rule that Great Expectations cannot evaluate (a missing column) fails with its error as observed value. Raises
    QualityNotInstalled.
    """
    if site is not None:
        _build_site_in(site)
    return [
        result
        for name, (rows, rules) in tables.items()
        if rules
        for result in _validate(name, rows, rules, site is not None)
    ]


@lru_cache(maxsize=1)
def _context() -> Any:
    # Great Expectations logs each registration at level INFO.
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    context = import_optional("great_expectations").get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    for name in list(context.get_site_names()):
        context.delete_data_docs_site(name)
    return context


def _build_site_in(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if SITE in _context().get_site_names():
        _context().delete_data_docs_site(SITE)
    store = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(folder)}
    index = {"class_name": "DefaultSiteIndexBuilder"}
    config = {"class_name": "SiteBuilder", "site_index_builder": index, "store_backend": store}
    _context().add_data_docs_site(site_name=SITE, site_config={**config, "show_how_to_buttons": False})


def _validate(name: str, rows: Any, rules: Sequence[Rule], documented: bool) -> list[RuleResult]:
    gx, context = import_optional("great_expectations"), _context()
    frame = to_pandas(rows, {column for rule in rules for column in referenced_columns(rule)})
    source = context.data_sources.add_or_update_pandas(SOURCE)
    data = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
    suite = context.suites.add_or_update(gx.ExpectationSuite(name, expectations=[expectation(rule) for rule in rules]))
    definition = gx.ValidationDefinition(name=name, data=data, suite=suite)
    definition = context.validation_definitions.add_or_update(definition)
    actions = [import_optional("great_expectations.checkpoint").UpdateDataDocsAction(name="docs", site_names=[SITE])]
    checkpoint = gx.Checkpoint(
        name=name, validation_definitions=[definition], actions=actions if documented else [], result_format="BASIC"
    )
    done = context.checkpoints.add_or_update(checkpoint).run(batch_parameters={"dataframe": frame})
    (result,) = done.run_results.values()
    by_rule = {
        (each.expectation_config.meta["name"], _columns(each.expectation_config.kwargs)): each
        for each in result.results
    }
    return [_rule_result(name, rule, by_rule[rule.name, _columns(rule.written)]) for rule in rules]


def _columns(kwargs: Mapping[str, Any]) -> str:
    """Return the columns of a rule: rules of different columns may have the same name."""
    return str(kwargs.get("column", kwargs.get("column_A", kwargs.get("column_list", ""))))


def _rule_result(table: str, rule: Rule, result: Any) -> RuleResult:
    facts = (table, rule.name, rule.expectation, rule.action, rule.severity)
    return RuleResult(*facts, passed=bool(result.success), observed=_observed(result))


def _observed(result: Any) -> str:
    errors = [error["exception_message"] for error in result.exception_info.values() if isinstance(error, dict)]
    if errors:
        return str(errors[0])
    details = result.result
    if details.get("unexpected_count") is not None:
        return f"{details['unexpected_count']:,} of {details.get('element_count', 0):,} rows"
    value = details.get("observed_value")
    if isinstance(value, float) and math.isfinite(value):
        return f"{float(value):,.10g}"
    return "" if value is None else f"{value}"


def to_pandas(rows: Any, columns: Iterable[str]) -> Any:
    """Return these columns of a pyarrow Dataset as a pandas frame; the first column when it has none of them.

    Integers and decimals become floats if each of them is exact as a float, because pandas has no null for them (NaN
    here). Columns with larger ones stay as they are, with None. Strings and booleans keep None; times are in UTC.
    """
    import pyarrow as pa

    names = rows.schema.names
    selected = [name for name in names if name in set(columns)] or names[:1]
    table = rows.to_table(columns=selected)
    for place, field in enumerate(table.schema):
        if _exact_as_floats(table[place], EXACT_DIGITS if pa.types.is_decimal(field.type) else EXACT_IN_DOUBLE):
            table = table.set_column(place, field.name, table.column(place).cast(pa.float64(), safe=False))
    frame = table.to_pandas(integer_object_nulls=True)
    for field in table.schema:
        if pa.types.is_decimal(field.type):
            frame[field.name] = frame[field.name].map(ExactDecimal, na_action="ignore")
    return frame


def _exact_as_floats(numbers: Any, limit: int) -> bool:
    """Return whether a column is of integers or decimals that are all, as integers of its scale, within ±`limit`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_integer(numbers.type) or pa.types.is_decimal(numbers.type)):
        return False
    least, most = pc.min_max(numbers).as_py().values()
    scale = numbers.type.scale if pa.types.is_decimal(numbers.type) else 0
    return least is None or bool(max(-least, most).scaleb(scale) < limit if scale else max(-least, most) < limit)
