"""The columns that the text of a `silver.py` adds, with the fields and reference columns that it names for each.

The text is read, never run. A name may be built while the code runs; such a column has no known origin here.

The columns that silver may have, before `silver.py` has run: those that are certain, and names in its texts.

Messages list the certain ones. A text of `silver.py` may be a column, an SQL expression, a format or a type; its names
may be columns, but for the names of types in it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp, parse
from sqlglot.errors import SqlglotError

RECORD = ""
"""Denotes the record instead of a reference table."""
Named = tuple[str, str]
"""RECORD or the name of a reference table, and one of its columns."""
NAMING = ("alias", "name")


@dataclass
class SilverColumns:
    """`added`: the origins of each column, empty if unknown; `joined`: the columns of the joins."""

    added: dict[str, set[Named]] = field(default_factory=dict)
    joined: set[Named] = field(default_factory=set)


@dataclass
class _SilverText:
    """The function `silver`, with the variables of its file."""

    fields: Collection[str]
    reference: Mapping[str, Collection[str]]
    variables: dict[str, ast.expr]
    found: SilverColumns = field(default_factory=SilverColumns)

    def visit(self, node: ast.AST, table: str) -> None:
        """Note the columns that a part of the text adds to the rows of `table`."""
        inner = table
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            root = self.root(node.func.value)
            inner = root if root is not None else table
            self._add_columns_of_call(node.func.attr, node, inner)
        for below in ast.iter_child_nodes(node):
            self.visit(below, inner)

    def _add_columns_of_call(self, method: str, call: ast.Call, table: str) -> None:
        assert isinstance(call.func, ast.Attribute)
        if method == "withColumn" and len(call.args) == 2:
            self._add(call.args[0], call.args[1], table)
        elif method == "withColumns" and call.args and isinstance(call.args[0], ast.Dict):
            for name, made in zip(call.args[0].keys, call.args[0].values, strict=True):
                if name is not None:
                    self._add(name, made, table)
        elif method == "withColumnRenamed" and len(call.args) == 2:
            self._add(call.args[1], call.args[0], table)
        elif method in NAMING and len(call.args) == 1:
            self._add(call.args[0], call.func.value, table)
        elif method == "select" and table != RECORD:
            for each in call.args:
                self._add(each, each, table)
        elif method == "join" and len(call.args) > 1:
            self.found.joined |= set(self.names(call.args[1], RECORD))

    def _add(self, name: ast.expr, made: ast.expr, table: str) -> None:
        """Note an added column. A reference table's column with the name of a field is the key of a join."""
        for column in _string_constants(name):
            if table == RECORD or column not in self.fields:
                self.found.added.setdefault(column, set()).update(self.names(made, table))

    def names(self, node: ast.AST, table: str, depth: int = 0) -> Iterator[Named]:
        """Yield the columns of `table` that an expression names, also through variables."""
        known = self.fields if table == RECORD else self.reference[table]
        for each in ast.walk(node):
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                if each.value in known:
                    yield table, each.value
                elif table == RECORD:
                    yield from self.found.added.get(each.value, ())
            elif isinstance(each, ast.Name) and each.id in self.variables and depth < len(self.variables):
                yield from self.names(self.variables[each.id], table, depth + 1)

    def root(self, node: ast.expr, depth: int = 0) -> str | None:
        """Return the table with which a chain of calls begins; None for a chain without one."""
        while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
            node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name):
            return None
        if node.id in self.reference:
            return node.id
        if node.id in self.variables and depth < len(self.variables):
            return self.root(self.variables[node.id], depth + 1)
        return RECORD if node.id == "accepted" else None


def silver_columns(text: str, fields: Collection[str], reference: Mapping[str, Collection[str]]) -> SilverColumns:
    """Return what a `silver.py` adds to the `fields` of a record; `reference`: columns by reference table."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return SilverColumns()
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.FunctionDef))]
    assigned = [node for body in bodies for node in body if isinstance(node, ast.Assign)]
    variables = {n.targets[0].id: n.value for n in assigned if isinstance(n.targets[0], ast.Name)}
    reading = _SilverText(fields, reference, variables)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "silver"]
    for function in functions:
        for statement in _without_docstring(function.body):
            reading.visit(statement, RECORD)
    return reading.found


def _without_docstring(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    return (node for node in body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)))


def _string_constants(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


WORDS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TYPED_CALLS = ("cast", "try_cast", "astype")
"""Methods of a column whose argument is a type."""


@dataclass(frozen=True)
class PossibleColumns:
    """`certain`: columns, which messages list; `others`: names that may be columns."""

    certain: frozenset[str]
    others: frozenset[str] = frozenset()

    def __or__(self, more: Iterable[str]) -> PossibleColumns:
        """Return these columns and more that are certain."""
        return PossibleColumns(self.certain | set(more), self.others)

    def of(self, rows: Callable[[Sequence[str]], list[str]]) -> PossibleColumns:
        return PossibleColumns(frozenset(rows(sorted(self.certain))), self.others)

    @property
    def usable(self) -> set[str]:
        """The names in lower case: Spark ignores case."""
        return {name.lower() for name in self.certain | self.others}


def names_in_code(tree: ast.AST) -> set[str]:
    """Return the names in the texts and keyword arguments of a module that may be columns."""
    nodes = list(ast.walk(tree))
    others = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    others |= {id(argument) for node in nodes for argument in _types(node)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in others]
    keywords = {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    return keywords | {name for text in texts if isinstance(text, str) for name in names_in_text(text)}


def names_in_text(text: str) -> set[str]:
    """Return the names in a text that may be columns: of an SQL expression, of a type's fields, or all words."""
    words = set(WORDS.findall(text))
    if WORDS.fullmatch(text) or not words:
        return words
    for kind in (text, f"struct<{text}>"):
        found = _parsed_type(kind)
        if found is not None and (kind == text or found.find(exp.ColumnDef)):
            return {field.name for field in found.find_all(exp.ColumnDef)}
    try:
        trees = [tree for tree in parse(text, dialect="spark") if tree is not None]
    except (SqlglotError, RecursionError, IndexError, ValueError):
        return words
    types = {str(word) for tree in trees for kind in tree.find_all(exp.DataType) for word in WORDS.findall(kind.sql())}
    named = {name.name for tree in trees for name in tree.find_all(exp.Identifier)}
    # A word that is only the name of a type may be in another text of the expression, as in a format.
    return words - {word for word in words if word.upper() in types and word not in named}


def _types(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TYPED_CALLS:
        yield from (*node.args, *(keyword.value for keyword in node.keywords))


def _parsed_type(text: str) -> Any:
    try:
        return exp.DataType.build(text, dialect="spark")
    except (SqlglotError, RecursionError, IndexError, ValueError):
        return None
