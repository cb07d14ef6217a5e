"""The columns that silver may have, before `silver.py` has run: those that are certain, and names in its texts.

Messages list the certain ones. A text of `silver.py` may be a column, an SQL expression, a format or a type; its names
may be columns, but for the names of types in it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sqlglot import exp, parse
from sqlglot.errors import SqlglotError

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
