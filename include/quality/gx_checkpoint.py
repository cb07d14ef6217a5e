"""Evaluates table rules with Great Expectations: one in-memory context per process, on pandas.

Reads: of each table the columns of one rule at a time, as `table_frames.py` says. Writes: Data Docs, when a folder is
given. Does not: store anything else of a run; send telemetry.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from include.catalog.contract_rules import Rule
from include.catalog.rule_results import RuleResult
from include.quality.odcs_standard import expectation
from include.quality.quality_packages import import_optional
from include.quality.table_frames import frames_of

SITE = "headrace"
# Great Expectations names the page of a table `<source>-<table>`.
SOURCE = "tables"
SAMPLES = 20
"""Values that break a rule and are kept, as Great Expectations does."""


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
    source = _context().data_sources.add_or_update_pandas(SOURCE)
    data = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
    results = [_evaluated(data, rows, rule) for rule in rules]
    if documented:
        _document(name, results)
    return [_rule_result(name, rule, result) for rule, result in zip(rules, results, strict=True)]


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
        "partial_unexpected_list": samples[:SAMPLES],
    }
    if "missing_count" in whole.result:
        whole.result |= {
            "missing_count": missing,
            "missing_percent": missing / rows * 100 if rows else None,
            "unexpected_percent_total": wrong / rows * 100 if rows else None,
            "unexpected_percent_nonmissing": wrong / judged * 100 if judged else None,
        }
    return whole


def _document(name: str, results: Sequence[Any]) -> None:
    """Write the results of a table's rules into the site."""
    core, context = import_optional("great_expectations.core"), _context()
    types = import_optional("great_expectations.data_context.types.resource_identifiers")
    run = import_optional("great_expectations.core.run_identifier").RunIdentifier(run_time=datetime.now(UTC))
    passed = sum(bool(result.success) for result in results)
    statistics = {
        "evaluated_expectations": len(results),
        "successful_expectations": passed,
        "unsuccessful_expectations": len(results) - passed,
        "success_percent": passed / len(results) * 100,
    }
    meta = {"run_id": run, "validation_time": run.run_time, "active_batch_definition": {"batch_identifiers": {}}}
    found = core.ExpectationSuiteValidationResult(
        success=passed == len(results), results=list(results), suite_name=name, statistics=statistics, meta=meta
    )
    suite = types.ExpectationSuiteIdentifier(name=name)
    key = types.ValidationResultIdentifier(
        expectation_suite_identifier=suite, run_id=run, batch_identifier=f"{SOURCE}-{name}"
    )
    context.validation_results_store.set(key, found)
    context.build_data_docs(site_names=[SITE], resource_identifiers=[key])


def _rule_result(table: str, rule: Rule, result: Any) -> RuleResult:
    facts = (table, rule.name, rule.expectation, rule.action, rule.severity)
    return RuleResult(*facts, passed=bool(result.success), observed=_observed(result))


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
