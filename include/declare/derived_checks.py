"""Checks of `derived.yaml`: its sources, its grains, and its SQL without Spark."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlglot import exp

from include.declare.children import child_table
from include.declare.contract_rules import Rule, referenced_columns, rule_findings, typed_rule
from include.declare.dataset import DERIVED, dataset_names
from include.declare.derived_dataset import (
    DerivedGold,
    DerivedPipeline,
    derived_names,
    read_derived,
    require_derived,
)
from include.declare.sql_checks import NotSql, parsed_expression, parsed_query, row_faults
from include.declare.touched_checks import grain_mismatches
from include.declare.yaml_declarations import Document, Finding, InvalidValue, Key, Problem, accepted_names, shown
from include.ground.settings import Settings

SOURCE = re.compile(r"(silver|gold)\.[a-z][a-z0-9_]{0,62}")


def derived_problems(settings: Settings, name: str) -> list[Problem]:
    """Return all problems of a derived dataset's folder, by line; raises as `require_derived`."""
    require_derived(settings, name)
    document = Document(settings.datasets / name / DERIVED)
    pipeline = read_derived(document)
    if pipeline is not None:
        declared = dict(_declared_sources(settings))
        document.check(_file_findings(document.path.parent))
        document.check(derived_findings(pipeline, name, _declared_tables(settings), declared))
        document.check(_expiring_sources(settings, pipeline))
    return sorted(document.problems)


def derived_findings(
    pipeline: DerivedPipeline, dataset: str, tables: Sequence[tuple[str, str]], sources: Mapping[str, Collection[str]]
) -> Iterator[Finding]:
    """Yield what is wrong with a derived pipeline.

    `tables` are those of all datasets with the dataset of each, such as `silver.flights`, `flights`; `sources` are
    the tables that each derived dataset reads.
    """
    if not pipeline.sources:
        yield ("sources",), "must name at least one table"
    if not pipeline.gold:
        yield ("gold",), "must have at least one table"
    for layer in ("bronze", "silver"):
        if getattr(pipeline.retention, layer) is not None:
            yield ("retention", layer), f"a derived dataset has no {layer}"
    yield from accepted_names((("sources", name), name) for name in pipeline.sources)
    yield from accepted_names((("gold", gold.name), gold.name) for gold in pipeline.gold)
    others = {table: owner for table, owner in tables if owner != dataset}
    own = {f"silver.{dataset}", *(gold.table for gold in pipeline.gold)}
    for name, table in pipeline.sources.items():
        yield from ((("sources", name), why) for why in _source_problems(table, own, others))
        if dataset in _upstream(others.get(table, ""), dict(tables), sources):
            why = f"{table} is itself derived from this dataset; derived datasets must not form a circle"
            yield ("sources", name), why
    for gold in pipeline.gold:
        if gold.table in others:
            why = f"dataset {others[gold.table]} has a gold table of this name; names are unique over all datasets"
            yield ("gold", gold.name), why
        yield from ((("gold", gold.name, *key), why) for key, why in _gold_findings(gold, tuple(pipeline.sources)))


def _expiring_sources(settings: Settings, pipeline: DerivedPipeline) -> Iterator[Finding]:
    """Yield the sources that lose records with age: recomputed grains would lose these records too."""
    for source, table in pipeline.sources.items():
        layer, _, dataset = table.partition(".")
        retention = _mapping(settings.datasets / dataset / "pipeline.yaml").get("retention")
        if layer == "silver" and isinstance(retention, dict) and "silver" in retention:
            why = f"{table} expires (retention.silver of {dataset}); use a gold table of it, which keeps its rows"
            yield ("sources", source), why


def _file_findings(folder: Path) -> Iterator[Finding]:
    for name in ("pipeline.yaml", "contract.yaml", "silver.py"):
        if (folder / name).exists():
            yield (), f"a derived dataset has no {name}: it reads no topic; remove one of the files"


def _upstream(dataset: str, owners: Mapping[str, str], sources: Mapping[str, Collection[str]]) -> set[str]:
    found, left = set[str](), [dataset]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [owners.get(table, table.partition(".")[2]) for table in sources.get(name, ())]
    return found


def _source_problems(table: str, own: Collection[str], tables: Collection[str]) -> Iterator[str]:
    if not SOURCE.fullmatch(table):
        yield f"must be silver.<dataset> or gold.<table>, is {shown(table)}"
    elif table in own:
        yield f"{table} is of this dataset; a source is a table of another one"
    elif table not in tables:
        yield f"there is no table {table}; tables: {', '.join(sorted(set(tables) - set(own)))}"


def _gold_findings(gold: DerivedGold, sources: tuple[str, ...]) -> Iterator[Finding]:
    if not gold.grain:
        yield ("grain",), "must name at least one column"
    yield from accepted_names((("grain", n), name) for n, name in enumerate(gold.grain))
    for source in sources:
        if source not in gold.touched_by:
            yield ("touched_by",), f"does not say which grains a row of source {source} touches; add {source}: {{…}}"
    found = [
        (("touched_by", source, *key), why)
        for source, columns in gold.touched_by.items()
        for key, why in _touched_by_findings(gold, source, columns, sources)
    ]
    found += [(("query",), why) for why in _query_problems(gold, sources)]
    yield from found or grain_mismatches(gold)
    yield from _quality_findings(gold)
    if gold.partition:
        yield from ((("partition",), why) for why in _expression_problems(gold.partition, gold.grain))


def _quality_findings(gold: DerivedGold) -> Iterator[Finding]:
    """Yield rules that cannot be evaluated, and columns named by rules and promises that the query does not have."""
    names, rules = _output_names(gold), list[tuple[Key, Rule]]()
    for n, model in enumerate(gold.quality):
        key: Key = ("quality", n)
        try:
            rules.append((key, typed_rule(model, None)))
        except InvalidValue as error:
            yield (*key, *error.key), error.why
    yield from rule_findings(rules)
    named = [((*key, "implementation"), column) for key, rule in rules for column in referenced_columns(rule)]
    named += [(("columns", column), column) for column in gold.columns]
    for key, column in named:
        if names and column not in names:
            yield key, f"{shown(column)} is not a column of the query; columns: {', '.join(names)}"


def _output_names(gold: DerivedGold) -> list[str]:
    """Return the names of the query's columns; none when the text alone does not show them."""
    try:
        names = parsed_query(gold.query).named_selects
    except NotSql:
        return []
    return [] if "*" in names else list(names)


def _touched_by_findings(
    gold: DerivedGold, source: str, columns: dict[str, str], sources: tuple[str, ...]
) -> Iterator[Finding]:
    if source not in sources:
        yield (), f"{source} is not a source; sources: {', '.join(sources)}"
    if set(columns) != set(gold.grain):
        yield (), f"must give the grain's columns ({', '.join(gold.grain)}), gives {', '.join(columns) or 'none'}"
    for column, expression in columns.items():
        yield from (((column,), why) for why in _expression_problems(expression, None))


def _expression_problems(text: str, columns: tuple[str, ...] | None) -> Iterator[str]:
    """Yield why a text is not an SQL expression of one row, over these columns unless None."""
    try:
        tree = parsed_expression(text)
    except NotSql as error:
        yield str(error)
        return
    yield from row_faults(tree)
    named = {column.name for column in tree.find_all(exp.Column)}
    if columns is not None and (not named or named - set(columns)):
        yield f"must be an expression over {', '.join(columns)} alone, so that a row never moves, is {shown(text)}"


def _query_problems(gold: DerivedGold, sources: tuple[str, ...]) -> Iterator[str]:
    try:
        query = parsed_query(gold.query)
    except NotSql as error:
        yield str(error)
        return
    known = {*sources, *(cte.alias for cte in query.find_all(exp.CTE))}
    for table in query.find_all(exp.Table):
        if table.name and (table.db or table.name not in known):
            yield f"reads {table.sql(dialect='spark')}, which is not a source; sources: {', '.join(sources)}"
    names = query.named_selects
    if "*" not in names and (missing := [column for column in gold.grain if column not in names]):
        yield f"the query's columns must include {', '.join(missing)}, are {', '.join(names)}"


def _declared_tables(settings: Settings) -> list[tuple[str, str]]:
    """Return all declared tables, each with its dataset; a derived dataset has no silver."""
    found = [(f"silver.{name}", name) for name in dataset_names(settings)]
    files = [settings.datasets / name / "pipeline.yaml" for name in dataset_names(settings)]
    files += [settings.datasets / name / DERIVED for name in derived_names(settings)]
    for path in files:
        dataset, children = path.parent.name, _mapping(path).get("children")
        found += [(f"silver.{child_table(dataset, each)}", dataset) for each in children or ()]
        gold = _mapping(path).get("gold")
        found += [(f"gold.{table}", path.parent.name) for table in gold] if isinstance(gold, dict) else []
    return found


def _declared_sources(settings: Settings) -> Iterator[tuple[str, list[str]]]:
    for name in derived_names(settings):
        sources = _mapping(settings.datasets / name / DERIVED).get("sources")
        yield name, [str(table) for table in sources.values()] if isinstance(sources, dict) else []


def _mapping(path: Path) -> dict[str, Any]:
    value = Document(path, strict=False).value
    return value if isinstance(value, dict) else {}
