"""SQL of a pipeline, parsed as Spark's dialect without Spark: syntax, the kind of statement, and the columns named.

What silver's columns are is known for certain only when `silver.py` has run, so a driver checks again before it creates
tables (`spark_jobs/layers/silver_code.py`). Here a column is known when the contract, a reference table or any text
in `silver.py` names it.

Whether a gold query computes each grain from the rows of that grain alone.

A run recomputes the grains that it touched: the query's view `silver` has their rows and no others. A query that looks
at several grains at once (a running total over days, a `limit`) would give different rows in the stream and in a
rebuild.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import TokenType

from include.declare.contract import ADDED_UP, Contract
from include.declare.gold import Gold
from include.declare.pipeline import Pipeline
from include.declare.silver_columns import PossibleColumns, names_in_code, silver_columns
from include.declare.yaml_declarations import Document, Finding, Key, Problem, shown
from include.ground.record_coordinates import COORDINATES

Reason = tuple[int, str]
"""Line of the query and what is wrong there."""


def grain_problems(query: Any, grain: Sequence[str]) -> Iterator[Reason]:
    """Yield where a parsed query combines rows of several grains, which `grain` names."""
    columns = {name.lower() for name in grain}
    listed = ", ".join(grain)
    for select in query.find_all(exp.Select):
        yield from _select_problems(select, columns, listed)
    for part in query.find_all(exp.Limit, exp.Offset, exp.Fetch):
        why = f"takes rows of all grains together; use row_number() over (partition by {listed} order by …)"
        yield _line(part), why
    for condition in query.find_all(exp.In, exp.Exists):
        if condition.find(exp.Query):
            yield _line(condition), f"looks into rows of other grains; join the subquery using ({listed})"
    for subquery in query.find_all(exp.Subquery):
        if not isinstance(subquery.parent, exp.From | exp.Join | exp.SetOperation | exp.Subquery | exp.CTE):
            yield _line(subquery), f"looks into rows of other grains; join the subquery using ({listed})"


def _select_problems(select: Any, grain: set[str], listed: str) -> Iterator[Reason]:
    for projection in select.expressions:
        if projection.alias.lower() in grain and _name(projection.unalias()) != projection.alias.lower():
            yield _line(projection), f"{projection.alias} must be the grain's own column, is {_text(projection)}"
    own = [node for node in select.find_all(exp.Window, exp.AggFunc) if node.find_ancestor(exp.Select) is select]
    windows = [node for node in own if isinstance(node, exp.Window)]
    for window in windows:
        if not grain <= _partition_of(window, select):
            yield _line(window), f"ranges over several grains: {_text(window)}; partition by {listed}"
    over = {id(node) for window in windows for node in window.this.walk()}
    has_aggregates = any(isinstance(node, exp.AggFunc) and id(node) not in over for node in own)
    group = select.args.get("group")
    if (group or has_aggregates) and not grain <= _group_columns(group, select):
        yield _line(group or select), f"aggregates several grains; group by {listed}"
    if select.args.get("distinct") and not grain <= {_name(each) for each in select.expressions}:
        yield _line(select), f"select distinct must have the columns {listed}, or it mixes grains"
    for join in select.args.get("joins") or ():
        if not isinstance(join.this, exp.Unnest | exp.Lateral) and not grain <= _equated_columns(join):
            yield _line(join), f"joins rows of several grains; join using ({listed})"


def _partition_of(window: Any, select: Any) -> set[str]:
    named = {each.this.name.lower(): each for each in select.args.get("windows") or ()}
    base = named.get(window.alias.lower()) if window.alias else None
    return {_name(each) for each in (base or window).args.get("partition_by") or ()}


def _group_columns(group: Any, select: Any) -> set[str]:
    """Return the names of the columns by which a select groups; of none for grouping sets."""
    if group is None or any(group.args.get(kind) for kind in ("rollup", "cube", "grouping_sets")):
        return set()
    if group.args.get("all"):
        return {_name(each) for each in select.expressions if not each.find(exp.AggFunc)}
    positions = [int(each.name) for each in group.expressions if isinstance(each, exp.Literal) and each.is_int]
    placed = [select.expressions[n - 1] for n in positions if 0 < n <= len(select.expressions)]
    return {_name(each) for each in (*group.expressions, *placed)}


def _equated_columns(join: Any) -> set[str]:
    """Return the names of the columns that a join equates on both sides."""
    names = {each.name.lower() for each in join.args.get("using") or ()}
    on = join.args.get("on")
    conditions = list(on.flatten()) if isinstance(on, exp.And) else [on] if on is not None else []
    for each in (condition.unnest() for condition in conditions):
        if isinstance(each, exp.EQ | exp.NullSafeEQ) and _name(each.this) == _name(each.expression):
            names.add(_name(each.this))
    return names


def _name(node: Any) -> str:
    """Return the lower-case name of a plain column, empty for any other expression."""
    plain = node.unalias() if isinstance(node, exp.Alias) and node.alias.lower() == node.this.name.lower() else node
    return str(plain.name).lower() if isinstance(plain, exp.Column) else ""


def _line(node: Any) -> int:
    return next((each.meta["line"] for each in node.walk() if "line" in each.meta), 1)


def _text(node: Any) -> str:
    return str(node.sql(dialect="spark"))


ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# What Spark and DuckDB evaluate alike over the same types (tests/cases/test_sql_in_both_engines.py). Casts, arithmetic
# of wide decimals, and functions of text and time differ in some of their results.
SAME_IN_DUCKDB = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Star, exp.Paren, exp.Alias, exp.Tuple),
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Is),
    *(exp.In, exp.Between, exp.Case, exp.If, exp.Coalesce, exp.Neg, exp.Abs),
    *(exp.Select, exp.From, exp.Table, exp.TableAlias, exp.Subquery, exp.With, exp.CTE, exp.Where, exp.Group),
    *(exp.Having, exp.Qualify, exp.Distinct, exp.Order, exp.Ordered, exp.Window, exp.RowNumber, exp.Rank),
    *(exp.DenseRank, exp.Lag, exp.Lead, exp.Count, exp.Sum, exp.Min, exp.Max, exp.Filter),
)


def silver_code_problems(path: Path, reference: Iterable[str] | None) -> Iterator[Problem]:
    """Yield what is wrong with `silver.py` that shows without running it; `reference` is None when it is unknown."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except FileNotFoundError:
        yield Problem(path, 1, "", "is missing")
        return
    except (SyntaxError, ValueError, RecursionError, OSError) as error:
        yield Problem(path, getattr(error, "lineno", None) or 1, "", f"{type(error).__name__}: {error}")
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (Problem(path, node.lineno, "", why) for why in _import_faults(node))
    named = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "silver"]
    if not named:
        if not any(isinstance(node, ast.Assign | ast.Import | ast.ImportFrom) and _binds(node) for node in tree.body):
            yield Problem(path, 1, "", "must define a function silver(accepted: DataFrame, …) -> DataFrame")
        return
    arguments = named[-1].args
    parameters = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    if reference is None:
        return
    expected = ["accepted", *reference]
    if arguments.kwarg is None and set(parameters[1:]) != set(expected[1:]):
        why = f"silver() must have the parameters {', '.join(expected)}, has {', '.join(parameters) or 'none'}"
        yield Problem(path, named[-1].lineno, "", why)


def _import_faults(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and node.level:
        yield "imports relatively; silver.py is loaded alone, without its folder"
        return
    names = [str(node.module)] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
    for package in dict.fromkeys(name.partition(".")[0] for name in names):
        if package not in sys.modules and find_spec(package) is None:
            yield f"imports {package}, which is not installed"


def sql_problems(pipeline: Document, declared: Pipeline, contract: Contract) -> Iterator[Problem]:
    """Yield the SQL of a pipeline that does not parse, or names columns that silver cannot have."""
    source = _silver_columns(declared, contract, pipeline.path.parent / "silver.py")
    yield from starmap(pipeline.problem, _expression_findings(("event_time",), declared.event_time, source))
    wide = {column.name.lower(): column.may_overflow for column in contract.plain_columns}
    for gold in (each for each in declared.gold if not each.only_adds):
        yield from starmap(pipeline.problem, _overflows(gold, wide))
        known = source if gold.over is None or source is None else source.of(gold.over.columns)
        for expression in _expressions(gold, known):
            yield from starmap(pipeline.problem, _expression_findings(*expression))
        if named := pipeline.value["gold"][gold.name].get(gold.query_key):
            file = pipeline.path.parent / str(named)
            for line, why in _query_findings(gold, known):
                yield Problem(file, line, "", why)


def _expressions(gold: Gold, silver: PossibleColumns | None) -> Iterator[tuple[Key, str, PossibleColumns | None]]:
    """Yield key, SQL and known columns of each expression of a gold table."""
    path: Key = ("gold", gold.name)
    if gold.partition:
        yield (*path, "partition"), gold.partition, PossibleColumns(frozenset(gold.row_columns))
    yield from (((*path, *key), expression, silver) for key, expression in gold.expressions())
    for timed in filter(None, (gold.window, gold.session)):
        yield (*path, timed.part, "column"), timed.column, silver


def _expression_findings(key: Key, expression: str, known: PossibleColumns | None) -> Iterator[Finding]:
    """Yield why a text is not an SQL expression over these columns; `known` is None where they cannot be known."""
    try:
        tree = parsed_expression(expression)
    except NotSql as error:
        yield key, str(error)
        return
    if "measures" in key:
        yield from ((key, why) for why in row_faults(tree))
    yield from ((key, why) for why in (*_unknown_columns(tree, known), *_unknown_functions(tree)))


def _query_findings(gold: Gold, silver: PossibleColumns | None) -> Iterator[tuple[int, str]]:
    """Yield line and reason where a query cannot be the query of a gold table."""
    try:
        query = parsed_query(gold.query)
    except NotSql as error:
        yield error.line, str(error)
        return
    ours = {"silver", *(cte.alias.lower() for cte in query.find_all(exp.CTE))}
    for table in query.find_all(exp.Table):
        if table.name and table.name.lower() not in ours:
            yield 1, f"reads {table.name}; a query of a gold table reads silver alone"
    grain, names = list(gold.grain_columns), query.named_selects
    if "*" not in names and names[: len(grain)] != grain:
        yield 1, f"the query's columns must begin with {', '.join(grain)}, are {', '.join(names)}"
    aliases = {alias.alias.lower() for alias in query.find_all(exp.Alias, exp.TableAlias, exp.Subquery)}
    aliases |= {column.name.lower() for alias in query.find_all(exp.TableAlias) for column in alias.columns}
    known = None if silver is None else silver | {*grain, *aliases}
    yield from ((1, why) for why in (*_unknown_columns(query, known), *_unknown_functions(query)))
    yield from grain_problems(query, grain)


def _overflows(gold: Gold, wide: Mapping[str, bool]) -> Iterator[Finding]:
    """Yield the sums of columns of 64 bits: two records may exceed the sum's 64 bits, and halt the stream."""
    for key, tree in _summed(gold):
        is_decimal = any(kind.this == exp.DataType.Type.DECIMAL for kind in tree.find_all(exp.DataType))
        for name in dict.fromkeys(
            known_path([part.name for part in column.parts], wide) for column in tree.find_all(exp.Column)
        ):
            if wide.get(name.lower()) and not is_decimal:
                why = f"{name} has 64 bits, and so would have the sum, which two records can exceed"
                remedy = f"write cast({name} as decimal(38,0)), or declare minimum and maximum"
                yield (*("gold", gold.name), *key), f"{why}; {remedy} of at most {ADDED_UP:,}"


def known_path(parts: Sequence[str], known: Collection[str]) -> str:
    """Return the longest of the `known` names (lower case) in the parts of a name: a column, or a field inside of one.

    The first parts may be the name of its table; the last ones may lead into what has no known parts, as a map.
    """
    places = ((begin, end) for begin in range(len(parts)) for end in range(len(parts), begin, -1))
    names = (".".join(parts[begin:end]) for begin, end in places)
    return next((name for name in names if name.lower() in known), parts[-1])


def _summed(gold: Gold) -> Iterator[tuple[Key, Any]]:
    """Yield the expressions that a gold table adds up, with their keys below the table."""
    sums = [node for tree in _parsed_or_none(gold.query) for node in tree.find_all(exp.Sum, exp.Avg)]
    yield from ((("query",), node.this) for node in sums)
    for each in gold.silver_measures:
        for text in each.added_up:
            yield from ((("measures", each.name, each.function), tree) for tree in _parsed_or_none(text))


def _parsed_or_none(sql: str) -> list[Any]:
    """Return the statements of a text; none of one that is refused anyway."""
    try:
        return parsed_statements(sql)
    except SqlglotError:
        return []


def unproven_constructs(sql: str) -> list[str]:
    """Return the functions and operators of an SQL text that Spark and DuckDB may evaluate differently, sorted."""
    nodes = [node for tree in parsed_statements(sql) for node in tree.walk() if not isinstance(node, SAME_IN_DUCKDB)]
    # sqlglot reads a cast of Spark as a "trycast", with its type as a node below it.
    unproven = {node.key.removeprefix("try") for node in nodes if not isinstance(node, exp.DataType)}
    # To Spark a backslash escapes and double quotes hold a text; to DuckDB they are a character and a name.
    return sorted(unproven | {name for mark, name in (("\\", "backslash"), ('"', "double quotes")) if mark in sql})


def duckdb_translation(expression: str) -> str:
    """Return an expression of Spark in DuckDB's SQL, its columns quoted; raises SqlglotError."""
    return str(parsed_statements(expression)[0].sql(dialect="duckdb", identify=True))


class NotSql(ValueError):
    """A text is not the one query, or the one expression, that it must be; `line`: where that shows."""

    def __init__(self, why: str, line: int = 1) -> None:
        super().__init__(why)
        self.line = line


def parsed_query(sql: str) -> Any:
    """Return the query that a text is. Raises NotSql."""
    trees = _parsed(sql, "SQL of Spark")
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        kinds = ", ".join(tree.key for tree in trees) or "nothing"
        raise NotSql(f"must hold one query and no other statement, holds {kinds}")
    return trees[0]


def parsed_expression(sql: str) -> Any:
    """Return the expression that a text is. Raises NotSql."""
    trees = _parsed(sql, "an SQL expression of Spark")
    if len(trees) != 1 or not isinstance(trees[0], exp.Condition) or isinstance(trees[0], exp.Query):
        raise NotSql(f"must be one SQL expression, is {shown(sql)}")
    return trees[0]


def _parsed(sql: str, what: str) -> list[Any]:
    try:
        return parsed_statements(sql)
    except SqlglotError as error:
        line = error.errors[0].get("line") if isinstance(error, ParseError) and error.errors else 1
        raise NotSql(f"is not {what}: {_reason(error)}, is {shown(sql)}", int(line or 1)) from error


def is_column(name: str) -> bool:
    """Return whether Spark's SQL reads a name as a column, without quotes: not `from`, `null` or `values`."""
    try:
        return isinstance(parsed_expression(name), exp.Column)
    except NotSql:
        return False


def row_faults(tree: Any) -> Iterator[str]:
    """Yield why an expression needs more than one row."""
    if nested := next(tree.find_all(exp.AggFunc, exp.Window, exp.Query), None):
        yield f"must be an expression of one row; {nested.sql(dialect='spark')} needs many"


def parsed_statements(sql: str) -> list[Any]:
    """Return the statements of a text; raises SqlglotError."""
    kinds = [token.token_type for token in sqlglot.tokenize(sql, read="spark")]
    # The parser accepts an unclosed parenthesis after some functions.
    if kinds.count(TokenType.L_PAREN) != kinds.count(TokenType.R_PAREN):
        raise ParseError("parentheses are not balanced")
    try:
        return [tree for tree in sqlglot.parse(sql, dialect="spark") if tree is not None]
    except RecursionError as error:
        raise ParseError("it is nested too deeply") from error
    except (IndexError, ValueError) as error:  # sqlglot's builders of some functions expect all arguments
        raise ParseError("a function lacks an argument") from error


def _unknown_columns(tree: Any, known: PossibleColumns | None) -> Iterator[str]:
    if known is None:
        return
    bound = {name.name.lower() for each in tree.find_all(exp.Lambda) for name in each.expressions}
    usable = known.usable | bound
    for name in dict.fromkeys(column.parts[0].name for column in tree.find_all(exp.Column)):
        if name.lower() not in usable:
            yield f"{name!r} is not a column; columns: {', '.join(sorted(known.certain))}"


@cache
def other_spark_functions() -> frozenset[str]:
    """Return the names of Spark's functions that sqlglot has no class for."""
    return frozenset((Path(__file__).parent / "spark_functions.txt").read_text("utf-8").split())


def _unknown_functions(tree: Any) -> Iterator[str]:
    known = other_spark_functions()
    for name in dict.fromkeys(node.name.lower() for node in tree.find_all(exp.Anonymous)):
        if name not in known:
            near = get_close_matches(name, [*known, *(each.lower() for each in exp.FUNCTION_BY_NAME)])
            yield f"{name!r} is not a function of Spark" + (f"; do you mean {', '.join(near)}?" if near else "")


def _silver_columns(pipeline: Pipeline, contract: Contract, silver: Path) -> PossibleColumns | None:
    """Return the possible columns of silver; None when `silver.py` computes names at run time."""
    fields, reference = contract.names, {table.name: table.names for table in pipeline.reference}
    try:
        text = silver.read_text("utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return None
    if any(isinstance(node, ast.JoinedStr | ast.Mod | ast.Add) for node in ast.walk(tree)):
        return None
    added = silver_columns(text, fields, reference).added
    certain = {*fields, *COORDINATES, *added, *(name for names in reference.values() for name in names)}
    return PossibleColumns(frozenset(certain), frozenset(names_in_code(tree)))


def _binds(node: ast.Assign | ast.Import | ast.ImportFrom) -> bool:
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "silver" for target in node.targets)
    return any((alias.asname or alias.name) == "silver" for alias in node.names)


def _reason(error: SqlglotError) -> str:
    return ANSI_COLOUR.sub("", " ".join(str(error).split()))[:200]
