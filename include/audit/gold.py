"""I5: every gold table holds what its declaration computes from silver. DuckDB recomputes it and compares each row.

Exact: counts, sums, minima, maxima, latest rows and the results of queries. `avg`: within one unit of the last place
of gold's decimal. `approx_distinct`: equal to the exact count below 200, where the sketch still holds every value,
else within 5 % of it (three standard errors). `approx_quantile`: within its relative error. A difference in a column
whose expression Spark and DuckDB may evaluate differently proves nothing: the table is then listed as unchecked;
equality proves that it is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from include.audit.findings import Finding, FindingKind
from include.audit.measures import Aggregates, is_wrong_sql
from include.declare.changes import ChangesGold
from include.declare.fold_function import FunctionFailed
from include.declare.gold import AdditiveGold, ChildGold, Gold, LatestGold, QueryGold
from include.declare.measures import Measure, measure_expressions
from include.declare.state_by_key import PLACE, FoldGold, LastGold
from include.declare.windows import SESSION_NUMBER, windowed_sql
from include.ground.errors import Terminal
from include.ground.sql_quoting import duckdb_expression, same_sql, sql_identifier
from include.read.published_tables import RefreshState


def recompute_sql(gold: Gold, silver: Sequence[str]) -> str:
    """Return the SQL that computes a gold table's declared columns from the view `silver` with the columns `silver`."""
    return RECOMPUTED[type(gold)](gold, silver)


def _additive(gold: Gold, silver: Sequence[str]) -> str:
    rows = Aggregates(grained_columns(gold, silver), gold.measures)
    keys = selected = [sql_identifier(name) for name in gold.grain_columns]
    measures = [f"{rows.of(measure)} as {sql_identifier(measure.name)}" for measure in gold.measures]
    source = "grained"
    if gold.session is not None:
        source = f"({gold.session.numbered_sql(gold.keys, source)})"
        keys, selected = [*keys, SESSION_NUMBER], [*keys, *gold.session.bounds_sql()]
    return (
        f"{grained_sql(gold, silver)} select {', '.join(selected + measures)} from {source} group by {', '.join(keys)}"
    )


def grained_columns(gold: Gold, silver: Sequence[str]) -> list[str]:
    """Return the columns of the source's rows and the window."""
    window, source = gold.window, source_columns(gold, silver)
    return source if window is None else [*source, window.name]


def latest_candidates_sql(gold: Gold, silver: Sequence[str]) -> str:
    """Return the query of all rows of `silver` as rows of the table, with what decides which is the newest."""
    source = source_columns(gold, silver)
    columns = [f"{duckdb_expression(sql, source)} as {sql_identifier(name)}" for name, sql in gold.columns]
    kept = [f"{sql_identifier(name)} as {sql_identifier(by)}" for name, by in gold.deciding_columns]
    return f"select {', '.join([*map(sql_identifier, gold.keys), *columns, *kept])} from {_source(gold, silver)}"


def newest_sql(gold: Gold, candidates: str) -> str:
    """Return the query of the newest row of each key."""
    keys = ", ".join(map(sql_identifier, gold.keys))
    order = ", ".join(f"{sql_identifier(by)} desc nulls last" for _, by in gold.deciding_columns)
    place = f"row_number() over (partition by {keys} order by {order})"
    if PLACE not in gold.row_columns:
        return f"select * from ({candidates}) qualify {place} = 1"
    rows = Aggregates([name for name, _ in gold.columns], gold.measures)
    newest = f"select *, {place} as {PLACE} from ({candidates}) qualify {PLACE} <= {gold.rows}"
    if not gold.measures:
        return newest
    measures = [f"{rows.of(each)} as {sql_identifier(each.name)}" for each in gold.measures]
    of_keys = f"select {', '.join([keys, *measures])} from newest group by {keys}"
    same = same_sql(gold.keys, "newest", "of_keys")
    return (
        f"with newest as ({newest}), of_keys as ({of_keys}) "
        f"select newest.*, of_keys.* exclude ({keys}) from newest join of_keys on {same}"
    )


def _query(gold: Gold, silver: Sequence[str]) -> str:
    columns = grained_columns(gold, silver)
    grain = [sql_identifier(name) for name in gold.grain_columns]
    same = same_sql(gold.grain_columns, "grained", "touched")
    return (
        f"{grained_sql(gold, silver)}, touched as "
        f"(select distinct {', '.join(grain)} from grained where {duckdb_expression(gold.row_condition, columns)}), "
        f"silver as (select * from grained semi join touched on {same} "
        f"union all select * from grained where {everywhere_sql(gold, columns)}) "
        f"select * from ({duckdb_expression(gold.query, columns)})"
    )


def everywhere_sql(gold: Gold, columns: Sequence[str]) -> str:
    """Return the condition of the rows of silver that belong to each grain."""
    return duckdb_expression(gold.everywhere, columns) or "false"


def grained_sql(gold: Gold, silver: Sequence[str]) -> str:
    """Return the beginning of a statement that names `grained`: silver with the window's column."""
    window = gold.window
    replaced = [name for name in source_columns(gold, silver) if window is not None and name == window.name]
    return f"with grained as ({windowed_sql(window, _source(gold, silver), replaced)})"


def _source(gold: Gold, silver: Sequence[str]) -> str:
    """Return the relation of the rows that count; a query sees all rows of the grains that its `touched_by` finds."""
    rows = "silver" if gold.over is None else gold.over.sql("silver", silver)
    if gold.counted == "true":
        return rows
    return f"(select * from {rows} where {duckdb_expression(gold.counted, source_columns(gold, silver))})"


def source_columns(gold: Gold, silver: Sequence[str]) -> list[str]:
    """Return the columns of the rows from which a table is computed, given those of silver."""
    return list(silver) if gold.over is None else gold.over.columns(silver)


def _latest(gold: Gold, silver: Sequence[str]) -> str:
    return newest_sql(gold, latest_candidates_sql(gold, silver))


def _children(gold: Gold, silver: Sequence[str]) -> str:
    names = [*gold.row_columns, *(name for name, _ in gold.columns)]
    return f"select {', '.join(map(sql_identifier, names))} from {_source(gold, silver)}"


RECOMPUTED: dict[type[Gold], Callable[[Gold, Sequence[str]], str]] = {
    AdditiveGold: _additive,
    LatestGold: _latest,
    LastGold: _latest,
    QueryGold: _query,
    FoldGold: _query,
    ChangesGold: _query,
    ChildGold: _children,
}


ROWS, GRAIN = "rows of the query", ""
DECIMAL = re.compile(r"DECIMAL\([0-9]+,(?P<scale>[0-9]+)\)")
# Differences between DuckDB and Spark SQL in spelling and order, for the expressions and queries of declarations.
DIALECT = """
create or replace macro to_date(moment) as cast(moment as date);
set default_null_order = 'nulls_first_on_asc_last_on_desc'
"""
# What DuckDB raises for the text or the result of an expression; a damaged file is an IOException or Arrow's error.
EVALUATION_ERRORS = (
    duckdb.ParserException,
    duckdb.BinderException,
    duckdb.CatalogException,
    duckdb.NotImplementedException,
    duckdb.ConversionException,
    duckdb.OutOfRangeException,
    duckdb.TypeMismatchException,
)


@dataclass(frozen=True)
class GoldCheck:
    """One gold table compared: rows published, grains recomputed from silver.

    `batch`: its last batch, if its refresh leaves it behind the publication.
    `expired`: further rows whose records have expired from silver, in part or all; they cannot be recomputed.
    `earlier`: rows that no newer record touches, and that are as the last balanced audit verified them; they are not
    recomputed. `decided`: what a `latest` table keeps to compare later rows with is right too.
    """

    table: str
    rows: int
    grains: int
    batch: int | None = None
    expired: int = 0
    earlier: int = 0
    decided: bool = False


@dataclass(frozen=True)
class Recomputation:
    """The query of some grains of a table, with `published` limited to them; `earlier` is the number of other rows."""

    sql: str
    earlier: int


@dataclass(frozen=True)
class UncheckedTable:
    """A table that was not checked, and why: DuckDB's `reason` for a declared `expression`, or a damaged table."""

    table: str
    expression: str
    reason: str


@dataclass(frozen=True)
class GoldResult:
    """What the comparison of a gold table gave: the check, or why there is none; and what is wrong."""

    check: GoldCheck | None
    findings: Sequence[Finding] = ()
    unchecked: UncheckedTable | None = None


def unchecked_error(dataset: str, unchecked: UncheckedTable) -> Terminal:
    """Return the error for a table that was not checked: DuckDB cannot evaluate its declaration, or another reason."""
    table, reason = unchecked.table, unchecked.reason
    if not unchecked.expression:
        what = f"{table} was not checked: {reason}; all other tables were checked"
        return Terminal(what, f"headrace audit --dataset {dataset}", code="table-not-checked", table=table)
    return Terminal(
        f"{table} was not checked: {reason} (in {unchecked.expression!r}); "
        "no file is damaged and all other tables were checked",
        f"write it in SQL that both Spark and DuckDB accept, then: headrace release run --dataset {dataset}",
        code="expression-not-evaluable",
        table=table,
    )


def gold_check(
    database: Any,
    gold: Gold,
    refreshed: RefreshState | None = None,
    first: int = 0,
    part: Recomputation | None = None,
) -> GoldResult:
    """Recompute a gold table from the view `silver` and compare it with the view `published`, row by row.

    `database` is a DuckDB connection in UTC. A table with `on_close` is expected to have the rows that are closed at
    `refreshed`. Only declared columns are compared; grains with records of batches before `first`, which have expired,
    are not. With `part` only these grains are. There is no check when DuckDB cannot evaluate the declaration.
    """
    table, silver = gold.table, columns_of(database, "silver")
    database.execute(DIALECT)
    computed = part.sql if part else recompute_sql(gold, silver)
    try:
        recomputed = f"select * from ({computed}) where {_expected(gold, refreshed)}"
        database.execute(f"create or replace temp table recomputed as {recomputed}")
    except EVALUATION_ERRORS as error:
        reason = f"DuckDB cannot evaluate it: {str(error).splitlines()[0]}"
        return GoldResult(None, (), UncheckedTable(table, _failing_expression(database, gold, silver), reason))
    try:
        _pass_through_function(database, gold)
    except FunctionFailed as error:
        # What the function read may be another value than Spark's.
        return GoldResult(None, (), _undecided(table, _doubtful(gold, {ROWS})) or UncheckedTable(table, "", str(error)))
    expired = _leave_out_expired(database, gold, first) if first else 0
    grain = ", ".join(map(sql_identifier, gold.row_columns))
    grains = _number(database, f"select count(*) from (select distinct {grain} from recomputed)")
    earlier = part.earlier if part else 0
    rows = _number(database, "select count(*) from published") + earlier
    found = list(_findings(database, gold, table))
    doubtful = _doubtful(gold, {column for column, _ in found})
    findings = [finding for column, finding in found if column not in doubtful]
    if doubtful:
        return GoldResult(None, findings, _undecided(table, doubtful))
    check = GoldCheck(table, rows, grains, None, expired, earlier, _is_decided(database, gold))
    return GoldResult(check, findings)


def _pass_through_function(database: Any, gold: Gold) -> None:
    """Put what a Python function makes of the table `recomputed` in its place. Raises FunctionFailed."""
    function, names = gold.by_python, gold.declared_columns
    if function is None or not set(names) <= set(columns_of(database, "published")):
        return
    listed = ", ".join(map(sql_identifier, names))
    made = database.sql(f"select {listed} from published limit 0").to_arrow_table().schema
    found = function.of_keys(database.sql("from recomputed").to_arrow_table(), gold.keys, made)
    database.register("made_by_function", found)
    database.execute("create or replace temp table recomputed as from made_by_function")
    database.unregister("made_by_function")


def _is_decided(database: Any, gold: Gold) -> bool:
    """Whether a `latest` table has the values by which its rows are the newest, and the right ones."""
    kept = [name for _, name in gold.deciding_columns]
    if not kept or not set(kept) <= set(columns_of(database, "published")):
        return False
    same = same_sql(gold.row_columns, "p", "r")
    wrong = " or ".join(f"p.{sql_identifier(name)} is distinct from r.{sql_identifier(name)}" for name in kept)
    return not _number(database, f"select count(*) from published as p join recomputed as r on {same} where {wrong}")


def _leave_out_expired(database: Any, gold: Gold, first: int) -> int:
    """Leave grains with records of batches before `first` out of both sides; return how many rows of gold they are."""
    grain = [sql_identifier(name) for name in gold.grain_columns]
    columns, same = ", ".join(grain), same_sql(gold.grain_columns, "l", "r")
    old = f"select distinct {columns} from published where _first_batch < {first}"
    database.execute(f"create or replace temp table expired_grains as {old}")
    before = _number(database, "select count(*) from published")
    database.execute(f"delete from recomputed as l where exists (select 1 from expired_grains as r where {same})")
    kept = f"select l.* from published as l anti join expired_grains as r on {same}"
    database.execute(f"create or replace temp table kept as {kept}")
    database.execute("drop view if exists published; create temp view published as from kept")
    return before - _number(database, "select count(*) from published")


def _expected(gold: Gold, refreshed: RefreshState | None) -> str:
    """Return the condition of the rows that a table has by its refresh."""
    timed = gold.timed_by
    return timed.closing(refreshed.watermark).sql if refreshed and timed and gold.closes else "true"


def _undecided(table: str, doubtful: Mapping[str, tuple[str, list[str]]]) -> UncheckedTable | None:
    """Return the table as not checked if there is a doubtful column."""
    for expression, constructs in doubtful.values():
        reason = f"Spark and DuckDB, which recomputes it, may evaluate {', '.join(constructs)} differently"
        return UncheckedTable(table, expression, reason)
    return None


def _doubtful(gold: Gold, differing: set[str]) -> dict[str, tuple[str, list[str]]]:
    """Return the differing columns whose difference proves nothing, as expression and unproven constructs."""
    if not differing:
        return {}
    # sqlglot takes half a second to import: only an audit that found a difference needs it.
    from include.declare.sql_checks import unproven_constructs

    written = dict(_written(gold))
    unproven = {column: (sql, unproven_constructs(sql)) for column, sql in written.items() if column in differing}
    return {column: (" ".join(sql.split()), constructs) for column, (sql, constructs) in unproven.items() if constructs}


def _written(gold: Gold) -> Iterator[tuple[str, str]]:
    """Yield the columns whose difference may be due to an expression, with the SQL that computes them."""
    if gold.query:
        yield ROWS, gold.written_query
        return
    condition = [] if gold.counted == "true" else [gold.counted]
    yield GRAIN, "; ".join(condition)
    for measure in gold.silver_measures:
        yield measure.name, "; ".join([*(sql for _, sql in measure_expressions(measure)), *condition])
    for name, sql in gold.columns:
        yield name, "; ".join([sql, *condition])


def _failing_expression(database: Any, gold: Gold, silver: Sequence[str]) -> str:
    """Return the first declared expression that fails by itself, or the query as a whole."""
    for expression, sql in _expressions(gold, silver):
        try:
            database.execute(f"select count(columns(*)) from ({sql})").fetchall()
        except EVALUATION_ERRORS:
            return expression
    return " ".join(gold.query.split()) or gold.name


def _expressions(gold: Gold, silver: Sequence[str]) -> Iterator[tuple[str, str]]:
    source, rows = source_columns(gold, silver), _source(gold, silver)
    for measure in gold.silver_measures:
        yield measure.expression, f"select {Aggregates(source, gold.silver_measures).of(measure)} from {rows}"
    for _, expression in gold.columns:
        yield expression, f"select {duckdb_expression(expression, source)} from {rows}"
    condition = duckdb_expression(gold.row_condition, grained_columns(gold, silver))
    yield gold.row_condition, f"{grained_sql(gold, silver)} select 1 from grained where {condition}"


def _findings(database: Any, gold: Gold, table: str) -> Iterator[tuple[str, Finding]]:
    """Yield each difference with the column whose expression it is about: ROWS for a query's, else GRAIN."""
    kept = {name for _, name in gold.deciding_columns}
    declared = [name for name in columns_of(database, "recomputed") if name not in kept]
    published = columns_of(database, "published")
    missing = [name for name in declared if name not in published]
    if missing:
        yield GRAIN, Finding(FindingKind.missing, table, 0, f"has no column {', '.join(missing)}")
    elif gold.query:
        yield from ((ROWS, finding) for finding in _query_findings(database, declared, table))
    else:
        yield from _keyed_findings(database, gold, table)


def columns_of(database: Any, table: str) -> list[str]:
    """Return the columns of a view, a table or a query of the connection."""
    return [str(row[0]) for row in database.sql(f"select column_name from (describe {table})").fetchall()]


def _keyed_findings(database: Any, gold: Gold, table: str) -> Iterator[tuple[str, Finding]]:
    keys = list(gold.row_columns)
    values = [*gold.measures, *(Measure(name, "max", name) for name, _ in gold.columns)]
    listed = ", ".join(map(sql_identifier, keys))
    scales = _decimal_scales(database)
    same = same_sql(keys, "p", "r")
    wrong = [is_wrong_sql(each, *_sides(each), scales.get(each.name)) for each in values]
    if _is_equal(database, same, wrong):
        return
    of_grains = [
        (
            FindingKind.overlap,
            "grains with more than one row",
            f"select {listed}, count(*) as rows from published group by {listed} having count(*) > 1",
        ),
        (
            FindingKind.missing,
            "grains computed from silver are not in gold",
            f"select {listed} from recomputed as r anti join published as p on {same}",
        ),
        (
            FindingKind.surplus,
            "grains of gold have no rows in silver",
            f"select {listed} from published as p anti join recomputed as r on {same}",
        ),
    ]
    for kind, detail, sql in of_grains:
        yield from ((GRAIN, finding) for finding in _first_of(database, sql, kind, table, detail, keys))
    for measure in values:
        found = _differences(database, table, keys, same, measure, scales.get(measure.name))
        yield from ((measure.name, finding) for finding in found)


def _is_equal(database: Any, same: str, wrong: Sequence[str]) -> bool:
    """Whether each row of one side has exactly one of the other, and no value is wrong: all in one join."""
    there = "select *, true as _there from"
    unequal = " or ".join(["p._there is null", "r._there is null", *wrong])
    joined = f"({there} published) as p full join ({there} recomputed) as r on {same}"
    rows, differing = database.sql(f"select count(*), count(*) filter (where {unequal}) from {joined}").fetchall()[0]
    sides = {_number(database, f"select count(*) from {side}") for side in ("published", "recomputed")}
    return bool(differing == 0 and sides == {rows})


def _sides(measure: Measure) -> tuple[str, str]:
    name = sql_identifier(measure.name)
    return f"p.{name}", f"r.{name}"


def _differences(
    database: Any, table: str, keys: list[str], same: str, measure: Measure, scale: int | None
) -> Iterator[Finding]:
    shown = ", ".join(f"p.{sql_identifier(key)}" for key in keys)
    gold, expected = _sides(measure)
    sql = (
        f"select {shown}, {gold} as gold, {expected} as recomputed from published as p "
        f"join recomputed as r on {same} where {is_wrong_sql(measure, gold, expected, scale)}"
    )
    yield from _first_of(database, sql, FindingKind.different, table, f"rows with a wrong {measure.name}", keys)


def _query_findings(database: Any, columns: Sequence[str], table: str) -> Iterator[Finding]:
    listed = ", ".join(map(sql_identifier, columns))
    recomputed, published = f"select {listed} from recomputed", f"select {listed} from published"
    missing, surplus = f"{recomputed} except all {published}", f"{published} except all {recomputed}"
    yield from _first_of(database, missing, FindingKind.missing, table, "rows of the query are not in gold", columns)
    yield from _first_of(
        database, surplus, FindingKind.surplus, table, "rows of gold are not in the query's result", columns
    )


def _first_of(
    database: Any, sql: str, kind: FindingKind, table: str, detail: str, order: Sequence[str]
) -> Iterator[Finding]:
    """Yield one finding for all rows of `sql`: their number and the first by `order`."""
    rows = _number(database, f"select count(*) from ({sql})")
    if rows:
        found = database.sql(f"select * from ({sql}) order by {', '.join(map(sql_identifier, order))} limit 1")
        first = ", ".join(f"{name}={value}" for name, value in zip(found.columns, found.fetchall()[0], strict=True))
        yield Finding(kind, table, rows, f"{rows} {detail}; the first: {first}")


def _number(database: Any, sql: str) -> int:
    return int(database.sql(sql).fetchall()[0][0])


def _decimal_scales(database: Any) -> dict[str, int]:
    rows = database.sql("select column_name, column_type from (describe published)").fetchall()
    found = {name: DECIMAL.fullmatch(kind) for name, kind in rows}
    return {name: int(decimal["scale"]) for name, decimal in found.items() if decimal}
