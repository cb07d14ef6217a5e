"""From the columns of a dataset's tables back to the fields of its contract, as the folder declares it.

Bronze keeps the record as bytes; here the field `x` of the JSON object in its column `value` is named `value.x`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import build_scope

from include.declare.analyses import Analysis
from include.declare.children import INDEX
from include.declare.dataset import ANALYSES, DERIVED, Dataset, dataset_names, declared_dataset
from include.declare.derived_dataset import REFERENCE, ColumnUse, DerivedDataset, DerivedGold, derived_in_order
from include.declare.gold import Gold
from include.declare.measures import Measure, measure_expressions
from include.declare.silver_columns import RECORD, SilverColumns, silver_columns
from include.declare.sql_checks import known_path, parsed_statements
from include.declare.yaml_declarations import Document
from include.ground.record_coordinates import COORDINATES
from include.ground.settings import Settings

Use = Literal[
    "identity", "transformation", "aggregation", "conditional", "window", "filter", "join", "group_by", "sort"
]
"""How a value depends on a column. The first three pass its values on; the others only select values or rows."""
DIRECT: tuple[Use, ...] = ("identity", "transformation", "aggregation")
"""In order of precedence when one use follows another."""


@dataclass(frozen=True, order=True)
class ColumnOrigin:
    """A column from which another is computed; `table` is named as in a LineageEdge."""

    table: str
    column: str
    use: Use


Origins = tuple[ColumnOrigin, ...]


@dataclass(frozen=True)
class TableColumns:
    """The origins of a table's columns, and of its rows: the columns that decide which rows it has."""

    columns: Mapping[str, Origins] = field(default_factory=dict)
    rows: Origins = ()


def followed_by(inner: Use, outer: Use) -> Use:
    """Return how a column is used through two steps: its values are passed on only if both pass them on."""
    for use in (outer, inner):
        if use not in DIRECT:
            return use
    return max(inner, outer, key=DIRECT.index)


def used(origins: Origins, outer: Use) -> Iterator[ColumnOrigin]:
    """Yield the origins of a column that is itself used as `outer`."""
    return (replace(each, use=followed_by(each.use, outer)) for each in origins)


def use_of(column: Any, expression: Any) -> Use:
    """Return how an expression uses one of the columns in it; both are nodes of sqlglot."""
    use: Use = "identity" if column is expression.unalias() else "transformation"
    node = column
    while node is not expression:
        above = node.parent
        if isinstance(above, exp.If) and node.arg_key == "this":
            return "conditional"
        if isinstance(above, exp.Window) and node.arg_key != "this":
            return "window"
        if isinstance(above, exp.AggFunc):
            use = "aggregation"
        node = above
    return "aggregation" if isinstance(expression, exp.AggFunc) else use


def unique(origins: Iterable[ColumnOrigin]) -> Origins:
    """Return the origins without repetitions, sorted."""
    return tuple(sorted(set(origins)))


CLAUSES: Mapping[str, Use] = {
    **dict.fromkeys(("where", "having", "qualify"), "filter"), "joins": "join", "group": "group_by", "order": "sort"
}  # fmt: skip


def query_columns(sql: str, tables: Mapping[str, Sequence[str]], dialect: str = "spark") -> TableColumns:
    """Return the origins of a query's columns over these tables and their columns.

    A column has no origins where the text does not show them: an unknown column, an unnested array.
    """
    scope = qualified_scope(sql, tables, dialect)
    if scope is None:
        return TableColumns()
    columns = {name: unique(_origins_of(name, scope)) for name in scope.expression.named_selects}
    return TableColumns(columns, unique(_row_origins(scope)))


def qualified_scope(
    sql: str, tables: Mapping[str, Iterable[str]], dialect: str = "spark", *, have_others: bool = False
) -> Any:
    """Return the scope of a query whose columns name their tables; None where its text does not show them.

    `have_others`: the tables may have other columns, too; a column that is of one of these names no table.
    """
    schema: dict[str, Any] = {}
    for name, columns in tables.items():
        layer, _, table = name.rpartition(".")
        (schema.setdefault(layer, {}) if layer else schema)[table] = dict.fromkeys(columns, "unknown")
    try:
        tree = parsed_statements(sql)[0] if dialect == "spark" else sqlglot.parse_one(sql, dialect=dialect)
        return build_scope(
            qualify(
                tree,
                schema=schema,
                dialect=dialect,
                validate_qualify_columns=False,
                identify=False,
                allow_partial_qualification=have_others,
            )
        )
    except (SqlglotError, RecursionError):
        return None


def _origins_of(name: str, scope: Any) -> Iterator[ColumnOrigin]:
    if scope.set_operation_scopes:
        position = scope.expression.named_selects.index(name)
        for branch in scope.set_operation_scopes:
            yield from _origins_of(branch.expression.named_selects[position], branch)
        return
    for projection in scope.expression.selects:
        if projection.alias_or_name == name:
            value = projection.unalias()
            yield from _expression_origins(value, scope)
            if value.find(exp.AggFunc) and not value.find(exp.Column):
                # A count of rows is computed from no column: it depends on the rows alone.
                yield from _clause_origins(scope)


def _expression_origins(expression: Any, scope: Any, use: Use | None = None) -> Iterator[ColumnOrigin]:
    for column in expression.find_all(exp.Column):
        outer = use or use_of(column, expression)
        source = source_of(column, scope)
        if isinstance(source, exp.Table):
            yield ColumnOrigin(".".join(filter(None, (source.db, source.name))), column.name, outer)
        elif source is not None and source.is_udtf:
            yield from used(unique(_expression_origins(source.expression, source, "transformation")), outer)
        elif source is not None and column.name in source.expression.named_selects:
            yield from used(unique(_origins_of(column.name, source)), outer)


def source_of(column: Any, scope: Any) -> Any:
    """Return the table or scope of a column; an unknown column belongs to the only source, if there is just one."""
    if not column.table and len(scope.selected_sources) == 1:
        return next(iter(scope.selected_sources.values()))[1]
    return scope.sources.get(column.table)


def _row_origins(scope: Any) -> Iterator[ColumnOrigin]:
    """Yield the columns that decide which rows a scope and its inner scopes have."""
    for below in scope.traverse():
        if not below.is_udtf:
            yield from _clause_origins(below)


def _clause_origins(scope: Any) -> Iterator[ColumnOrigin]:
    for key, use in CLAUSES.items():
        clause = scope.expression.args.get(key) or ()
        for part in clause if isinstance(clause, list | tuple) else [clause]:
            condition = part.args.get("on") if use == "join" else part
            if condition is not None:
                yield from _expression_origins(condition, scope, use)


VALUE = "value"
"""The payload of a Kafka record; its members are columns `value.<member>` of the topic and of bronze."""


def dataset_columns(dataset: Dataset) -> dict[str, TableColumns]:
    """Return the origins of the columns of all tables of a dataset, by the table's full name."""
    name, silver = dataset.name, silver_lineage(dataset)
    gold = {each.table: gold_lineage(each, f"silver.{name}", list(silver.columns)) for each in dataset.pipeline.gold}
    layers = {f"bronze.{name}": bronze_lineage(dataset), f"rejected.{name}": rejected_lineage(dataset)}
    return {**layers, f"silver.{name}": silver, **gold}


def declared_columns(settings: Settings) -> dict[str, TableColumns]:
    """Return the origins of the columns of all declared tables. Raises DeclarationRefused."""
    found = dict[str, TableColumns]()
    for name in dataset_names(settings):
        found |= dataset_columns(declared_dataset(settings, name))
    for derived in derived_in_order(settings):
        found |= derived_lineage(derived, {table: list(each.columns) for table, each in found.items()})
    return found


def topic_fields(known: Mapping[str, TableColumns], table: str, column: str) -> set[ColumnOrigin]:
    """Return the columns outside all known tables (of topics and reference tables) that a column leads back to."""
    found, waiting = set[ColumnOrigin](), [ColumnOrigin(table, column, "identity")]
    followed = set[tuple[str, str]]()
    while waiting:
        each = waiting.pop()
        if each.table not in known:
            found.add(replace(each, use="identity"))
        elif (each.table, each.column) not in followed:
            followed.add((each.table, each.column))
            waiting += known[each.table].columns.get(each.column, ())
    return found


def described_columns(known: Mapping[str, TableColumns], table: str) -> dict[str, tuple[str, str]]:
    """Return for each column of a table what it is computed from, and the fields outside that it leads back to."""
    columns = known[table].columns if table in known else {}
    return {name: (_described(origins), _outside(known, table, name)) for name, origins in columns.items()}


def _described(origins: Origins) -> str:
    return ", ".join(dict.fromkeys(f"{each.table}.{each.column} ({each.use.replace('_', ' ')})" for each in origins))


def _outside(known: Mapping[str, TableColumns], table: str, column: str) -> str:
    return ", ".join(sorted({each.column for each in topic_fields(known, table, column)}))


def bronze_lineage(dataset: Dataset) -> TableColumns:
    """Return the origins of bronze's fields: those of the record in the topic, and its coordinates."""
    topic, members = f"topic {dataset.pipeline.topic}", [column.member for column in dataset.contract.plain_columns]
    fields = {f"{VALUE}.{member}": (ColumnOrigin(topic, member, "identity"),) for member in members}
    whole = {VALUE: unique(ColumnOrigin(topic, member, "identity") for member in members)}
    return TableColumns(whole | fields)


def unchanged_fields(dataset: Dataset) -> dict[str, str]:
    """Return the columns of the contract that `silver.py` does not compute again, with their names in the record."""
    computed = _silver_columns(dataset).added
    columns = dataset.contract.plain_columns
    return {column.name: column.member for column in columns if column.name.partition(".")[0] not in computed}


def _silver_columns(dataset: Dataset) -> SilverColumns:
    fields = [column.name for column in dataset.contract.plain_columns]
    tables = {table.name: table.names for table in dataset.pipeline.reference}
    return silver_columns((dataset.folder / "silver.py").read_text("utf-8"), fields, tables)


def silver_lineage(dataset: Dataset) -> TableColumns:
    """Return the origins of silver's columns: those of the contract, then those that `silver.py` adds."""
    fields = {column.name: column.member for column in dataset.contract.plain_columns}
    found = _silver_columns(dataset)
    place = partial(_expression_origin, dataset, fields)
    columns: dict[str, Origins] = {name: (place((RECORD, name), "transformation"),) for name in fields}
    for name, named in found.added.items():
        # The text does not name the origin, so it may be any field.
        known = named or {(RECORD, column.name) for column in dataset.contract.columns}
        columns[name] = unique(place(each, "transformation") for each in known)
    joined = unique(place(each, "join") for each in found.joined)
    return TableColumns(columns | _coordinates(dataset), joined)


def rejected_lineage(dataset: Dataset) -> TableColumns:
    """Return the origins of rejected's columns: the record's coordinates, and reasons of any field."""
    bronze = f"bronze.{dataset.name}"
    members = [column.member for column in dataset.contract.columns]
    fields = unique(ColumnOrigin(bronze, f"{VALUE}.{member}", "conditional") for member in members)
    return TableColumns({**_coordinates(dataset), "disposition": fields, "reasons": fields})


def gold_lineage(gold: Gold, silver: str, columns: Sequence[str]) -> TableColumns:
    """Return the origins of a gold table's columns in silver, which has these columns."""
    if gold.over is not None:
        return _child_lineage(gold, silver, columns)
    window = gold.window
    if gold.query:
        found = query_columns(gold.query, {"silver": [*columns, *([window.name] if window else ())]})
        if gold.by_python:
            found = _through_function(gold, found)
        renamed = {window.name: window.column} if window else {}
        return _with_sources(found, {"silver": silver}, renamed)
    made = {name: _grain_origins(gold, silver, name) for name in gold.grain_columns} | dict(_computed(gold, silver))
    keys = (ColumnOrigin(silver, key, "group_by") for key in gold.keys)
    order = (ColumnOrigin(silver, name, "sort") for name in gold.order_by)
    rows = unique([*keys, *_expression(silver, gold.row_condition, "filter"), *order])
    known = {column.lower() for column in columns}

    def found_in_silver(origins: Origins) -> Origins:
        return unique(replace(each, column=known_path(each.column.split("."), known)) for each in origins)

    # A count of rows is computed from no column: it depends on the rows alone.
    named = {name: found_in_silver(origins or rows) for name, origins in made.items()}
    return TableColumns(named, found_in_silver(rows))


def _through_function(gold: Gold, read: TableColumns) -> TableColumns:
    """Return the origins of a function's columns: each may depend on all that the function reads."""
    origins = [replace(each, use="transformation") for name, _ in gold.columns for each in read.columns.get(name, ())]
    made = {name: unique(origins) for name, _ in gold.returns}
    return TableColumns({key: read.columns.get(key, ()) for key in gold.keys} | made, read.rows)


def _child_lineage(gold: Gold, silver: str, columns: Sequence[str]) -> TableColumns:
    """Return the origins of a table over children: a field of an element is one of the array in silver."""
    over = gold.over
    assert over is not None
    found = gold_lineage(gold.reading(None), silver, over.columns(columns))
    own = {*over.fields, INDEX, "reasons"} - set(columns)

    def of_array(origins: Origins) -> Origins:
        outer = ((each, each.column.partition(".")[0]) for each in origins)
        return unique(replace(each, column=over.column) if name in own else each for each, name in outer)

    return TableColumns({name: of_array(each) for name, each in found.columns.items()}, of_array(found.rows))


def derived_lineage(derived: DerivedDataset, columns: Mapping[str, Sequence[str]]) -> dict[str, TableColumns]:
    """Return the origins of the columns of a derived dataset's tables; `columns`: those of the sources' tables."""
    return {gold.table: _derived_gold(derived, gold, columns) for gold in derived.pipeline.gold}


def _derived_gold(derived: DerivedDataset, gold: DerivedGold, columns: Mapping[str, Sequence[str]]) -> TableColumns:
    sources = derived.pipeline.sources
    found = query_columns(gold.query, {name: columns.get(table, ()) for name, table in sources.items()})
    return _with_sources(found, sources, {})


def _expression_origin(dataset: Dataset, fields: Mapping[str, str], named: tuple[str, str], use: Use) -> ColumnOrigin:
    table, column = named
    if table == RECORD:
        return ColumnOrigin(f"bronze.{dataset.name}", f"{VALUE}.{fields[column]}", use)
    return ColumnOrigin(f"{REFERENCE}{dataset.name}.{table}", column, "identity" if use == "transformation" else use)


def _coordinates(dataset: Dataset) -> dict[str, Origins]:
    bronze = f"bronze.{dataset.name}"
    of = {name: name if name == "_batch_id" else name.removeprefix("_") for name in COORDINATES}
    return {name: (ColumnOrigin(bronze, column, "identity"),) for name, column in of.items()}


def _with_sources(found: TableColumns, sources: Mapping[str, str], renamed: Mapping[str, str]) -> TableColumns:
    """Return origins with the full names of tables; `renamed` columns are the start of a window over another."""

    def full(each: ColumnOrigin) -> ColumnOrigin:
        use: Use = "transformation" if each.column in renamed and each.use == "identity" else each.use
        return ColumnOrigin(sources.get(each.table, each.table), renamed.get(each.column, each.column), use)

    columns = {name: unique(map(full, origins)) for name, origins in found.columns.items()}
    return TableColumns(columns, unique(map(full, found.rows)))


def _grain_origins(gold: Gold, silver: str, name: str) -> Origins:
    if gold.window is not None and name == gold.window.name:
        return (ColumnOrigin(silver, gold.window.column, "transformation"),)
    return (ColumnOrigin(silver, name, "identity"),)


def _computed(gold: Gold, silver: str) -> Iterator[tuple[str, Origins]]:
    """Yield the columns besides the grain's with their origins."""
    made = dict[str, Origins]()
    if gold.session:
        of_time = (ColumnOrigin(silver, gold.session.column, "aggregation"),)
        yield from ((name, of_time) for name in (gold.session.start, gold.session.end))
    for measure in gold.silver_measures:
        parts = (*made.get(measure.of, ()), *made.get(measure.to, ()))
        made[measure.name] = unique([*parts, *_measure(measure, silver)])
    yield from made.items()
    yield from ((name, unique(_expression(silver, expression))) for name, expression in gold.columns)


def _measure(measure: Measure, silver: str) -> Iterator[ColumnOrigin]:
    for key, expression in measure_expressions(measure):
        yield from _expression(silver, expression, "sort" if key[-1] == "by" else "aggregation")
    if measure.declared.by_time:
        yield from _expression(silver, measure.by, "sort")


def _expression(table: str, text: str, use: Use | None = None) -> Iterator[ColumnOrigin]:
    """Yield the columns of an SQL expression over one table, as it names them; `use`: how its values are used."""
    if not text or text == "*":
        return
    (tree,) = parsed_statements(text)
    for column in tree.find_all(exp.Column):
        own = use_of(column, tree)
        yield ColumnOrigin(
            table, ".".join(part.name for part in column.parts), own if use is None or own == "conditional" else use
        )


Columns = Mapping[str, Collection[str]]
"""The columns of tables, by full name."""


def derived_uses(derived: DerivedDataset, columns: Columns) -> list[ColumnUse]:
    """Return what the queries and `touched_by` of a derived dataset read; `columns`: those that the tables may have."""
    document = Document(derived.folder / DERIVED, strict=False)
    found = {
        use for gold in derived.pipeline.gold for use in _gold_uses(gold, derived.pipeline.sources, columns, document)
    }
    return sorted(found)


def analysis_uses(analysis: Analysis, columns: Columns) -> list[ColumnUse]:
    """Return what the query of an analysis reads. Its lines are counted from the query's own first line."""
    file = f"{ANALYSES}/{analysis.name}.yaml"
    return sorted(set(query_uses(analysis.declared.query, {name: name for name in columns}, columns, file, "duckdb")))


def query_uses(
    sql: str, sources: Mapping[str, str], columns: Columns, file: str, dialect: str = "spark"
) -> Iterator[ColumnUse]:
    """Yield the columns that a query reads; `sources`: full names by the name in the query.

    A column that no table is known to have counts as one of the only table, if there is just one.
    """
    known = {name: {each.lower() for each in columns.get(table, ())} for name, table in sources.items()}
    scope = qualified_scope(sql, known, dialect)
    for below in scope.traverse() if scope is not None else ():
        aliases = {name.lower() for name in getattr(below.expression, "named_selects", ())}
        for column in below.columns:
            source = source_of(column, below)
            if not isinstance(source, exp.Table):
                continue
            name, own = ".".join(filter(None, (source.db, source.name))), column.name.lower()
            if name in sources and (own in known[name] or own not in aliases):
                yield ColumnUse(sources[name], own, f"{file}:{_line(column)}")


def _gold_uses(
    gold: DerivedGold, sources: Mapping[str, str], columns: Columns, document: Document
) -> Iterator[ColumnUse]:
    declared = document.value["gold"][gold.name]
    yield from query_uses(gold.query, sources, columns, str(declared["query"]))
    for source, expressions in gold.touched_by.items():
        for grain, expression in expressions.items():
            line = document.line(("gold", gold.name, "touched_by", source, grain))
            for column in parsed_statements(expression)[0].find_all(exp.Column):
                yield ColumnUse(sources[source], column.name.lower(), f"{DERIVED}:{line}")


def _line(column: Any) -> int:
    """Return the line of a column in the query; a column of `*` has none and counts as read in the first."""
    return int(column.this.meta.get("line", 1))
