"""Evaluates table rules with Great Expectations: one in-memory context per process, on pandas.

Reads: of each table the columns of one rule at a time, as `table_frames.py` says. Writes: nothing. Does not: build
Great Expectations' pages, whose scripts and styles come from other hosts; send telemetry.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from include.change.odcs_standard import expectation
from include.change.table_frames import frames_of
from include.declare.contract_rules import Rule, RuleResult
from include.ground.optional_packages import import_optional

SOURCE = "tables"
KEPT = 20
"""Values that break a rule, as Great Expectations keeps them."""
SAMPLES, LONGEST_SAMPLE = 5, 80
"""Number and length of different ones that are shown."""


def validate_tables(tables: Mapping[str, tuple[Any, Sequence[Rule]]]) -> list[RuleResult]:
    """Evaluate the rules of tables: name → (pyarrow Dataset, rules).

    A rule that Great Expectations cannot evaluate (a missing column) fails with its error as observed value. Raises
    QualityNotInstalled.
    """
    return [result for name, (rows, rules) in tables.items() if rules for result in _validate(name, rows, rules)]


@lru_cache(maxsize=1)
def _context() -> Any:
    # Great Expectations logs each registration at level INFO.
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    context = import_optional("great_expectations").get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    for name in list(context.get_site_names()):
        context.delete_data_docs_site(name)
    return context


def _validate(name: str, rows: Any, rules: Sequence[Rule]) -> list[RuleResult]:
    source = _context().data_sources.add_or_update_pandas(SOURCE)
    data = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
    return [_rule_result(name, rule, _evaluated(data, rows, rule)) for rule in rules]


def _evaluated(data: Any, rows: Any, rule: Rule) -> Any:
    """Return Great Expectations' result of a rule for a whole table."""
    parts, others, nulls = [], 0, 0
    for frame in frames_of(rows, rule):
        batch = data.get_batch(batch_parameters={"dataframe": frame.rows})
        parts.append(batch.validate(expectation(rule), result_format="BASIC"))
        others, nulls = others + frame.others, nulls + frame.nulls
    failed = next((part for part in parts if _errors(part)), None)
    if failed is not None:
        return failed
    return parts[0] if len(parts) == 1 and not others else _merged(parts, rule, others, nulls)


def _merged(parts: Sequence[Any], rule: Rule, others: int, nulls: int) -> Any:
    """Return the result of a rule about rows from those of parts of a table, as `_format_map_output` computes it.

    `others`: further rows, which satisfy the rule; `nulls` of them have no value.
    """
    whole, counted = parts[0], ("element_count", "missing_count", "unexpected_count")
    rows, missing, wrong = (sum(part.result.get(key) or 0 for part in parts) for key in counted)
    rows, missing = rows + others, missing + nulls
    judged = rows - missing
    whole.success = wrong == 0 or not judged or (judged - wrong) / judged >= rule.mostly
    samples = [value for part in parts for value in part.result.get("partial_unexpected_list", ())]
    whole.result |= {
        "element_count": rows,
        "unexpected_count": wrong,
        "unexpected_percent": wrong / judged * 100 if judged else None,
        "partial_unexpected_list": samples[:KEPT],
    }
    if "missing_count" in whole.result:
        whole.result |= {
            "missing_count": missing,
            "missing_percent": missing / rows * 100 if rows else None,
            "unexpected_percent_total": wrong / rows * 100 if rows else None,
            "unexpected_percent_nonmissing": wrong / judged * 100 if judged else None,
        }
    return whole


def _rule_result(table: str, rule: Rule, result: Any) -> RuleResult:
    facts = (table, rule.name, rule.expectation, rule.action, rule.severity)
    broken = dict.fromkeys(str(value)[:LONGEST_SAMPLE] for value in result.result.get("partial_unexpected_list", ()))
    samples = tuple(broken)[:SAMPLES]
    return RuleResult(*facts, passed=bool(result.success), observed=_observed(result), samples=samples)


def _errors(result: Any) -> list[str]:
    return [error["exception_message"] for error in result.exception_info.values() if isinstance(error, dict)]


def _observed(result: Any) -> str:
    if errors := _errors(result):
        return str(errors[0])
    details = result.result
    if details.get("unexpected_count") is not None:
        return f"{details['unexpected_count']:,} of {details.get('element_count', 0):,} rows"
    value = details.get("observed_value")
    if isinstance(value, float) and math.isfinite(value):
        return f"{float(value):,.10g}"
    return "" if value is None else f"{value}"
