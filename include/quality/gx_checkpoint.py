"""Whole tables asked by Great Expectations: one context a process, in memory, on pandas, with Data Docs as a site.

Reads: of each table the columns that its rules look at. Writes: the site, when a folder is given.
Does not: keep anything of a run but the site; send anything anywhere.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from include.catalog.contract_rules import FAIL, HOLD, Rule, referenced_columns
from include.quality.odcs_standard import expectation
from include.quality.quality_packages import import_optional

SITE = "headrace"
# Great Expectations names the page of a table `<source>-<table>`.
SOURCE = "tables"


@dataclass(frozen=True)
class Check:
    """One rule asked of one table: whether it `is_kept`; what was `seen`: a value, rows that broke it, or an error.

    `was_broken`: what readers see breaks it too, so a plan that is to change something else is not to blame.
    """

    table: str
    rule: str
    expectation: str
    action: str
    severity: str
    is_kept: bool
    seen: str
    was_broken: bool = False

    @property
    def blocks(self) -> bool:
        """Whether the table must not be published like this."""
        return not self.is_kept and self.action in (HOLD, FAIL) and not self.was_broken

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self) | {"blocks": self.blocks}


def validate_tables(tables: Mapping[str, tuple[Any, Sequence[Rule]]], site: Path | None = None) -> list[Check]:
    """Ask tables their rules: name → (pyarrow Dataset, rules); with `site`, build Data Docs there, anew.

    A rule that Great Expectations cannot ask (a column that is not there) is broken, and says so. QualityNotInstalled.
    """
    asked = {name: found for name, found in tables.items() if found[1]}
    if site is not None:
        _build_site_in(site)
    return [check for name, (rows, rules) in asked.items() for check in _asked(name, rows, rules, site is not None)]


@lru_cache(maxsize=1)
def _context() -> Any:
    """The context of this process."""
    # It tells each of its own registrations, as information.
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


def _asked(name: str, rows: Any, rules: Sequence[Rule], documented: bool) -> list[Check]:
    gx, context = import_optional("great_expectations"), _context()
    frame = to_pandas(rows, {column for rule in rules for column in referenced_columns(rule)})
    source = context.data_sources.add_or_update_pandas(SOURCE)
    data = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
    suite = context.suites.add_or_update(gx.ExpectationSuite(name, expectations=[expectation(rule) for rule in rules]))
    asking = gx.ValidationDefinition(name=name, data=data, suite=suite)
    asking = context.validation_definitions.add_or_update(asking)
    actions = [import_optional("great_expectations.checkpoint").UpdateDataDocsAction(name="docs", site_names=[SITE])]
    checkpoint = gx.Checkpoint(
        name=name, validation_definitions=[asking], actions=actions if documented else [], result_format="BASIC"
    )
    done = context.checkpoints.add_or_update(checkpoint).run(batch_parameters={"dataframe": frame})
    (result,) = done.run_results.values()
    by_name = {
        (each.expectation_config.meta["name"], _place(each.expectation_config.kwargs)): each for each in result.results
    }
    return [_check(name, rule, by_name[rule.name, _place(rule.written)]) for rule in rules]


def _place(kwargs: Mapping[str, Any]) -> str:
    return str(kwargs.get("column", kwargs.get("column_A", kwargs.get("column_list", ""))))


def _check(table: str, rule: Rule, result: Any) -> Check:
    facts = (table, rule.name, rule.expectation, rule.action, rule.severity)
    return Check(*facts, is_kept=bool(result.success), seen=_seen(result))


def _seen(result: Any) -> str:
    """What was seen, in words."""
    failures = [said["exception_message"] for said in result.exception_info.values() if isinstance(said, dict)]
    if failures:
        return str(failures[0])
    said = result.result
    if said.get("unexpected_count") is not None:
        return f"{said['unexpected_count']:,} of {said.get('element_count', 0):,} rows"
    value = said.get("observed_value")
    if isinstance(value, float) and math.isfinite(value):
        return f"{float(value):,.10g}"
    return "" if value is None else f"{value}"


def to_pandas(rows: Any, columns: Iterable[str]) -> Any:
    """Return a pyarrow Dataset's rows as the pandas frame that rules are asked of.

    Of these columns, those that it has, or all when none is named. Numbers are floats, so that a null is none of them;
    texts and booleans keep None; times are in UTC.
    """
    import pyarrow as pa

    there = rows.schema.names
    wanted = [name for name in there if name in set(columns)] or [there[0]]
    table = rows.to_table(columns=wanted)
    for place, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) or pa.types.is_integer(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.float64(), safe=False))
    return table.to_pandas()
