"""SQL text for DuckDB: literals, identifiers, and expressions of declarations, which are written in Spark SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# A string literal, a name in backquotes or double quotes, or a bare word with the character that follows it.
TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|(?<![\w'])[^\W\d]\w*(?=\s*([('])?)""")
# Words that structure a SELECT or an expression. A column of such a name is quoted only where it stands alone.
SYNTAX_WORDS = """
all and anti any as asc between by case cast cross desc distinct else end escape except exists false filter first
following from full group having ilike in inner intersect interval is join last left like limit natural not null nulls
offset on or order outer over partition preceding qualify range right row rows select semi then true try_cast unbounded
union using values when where window with
"""
SYNTAX = frozenset(SYNTAX_WORDS.split())


def sql_literal(text: str) -> str:
    """Return a text as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def sql_identifier(name: str) -> str:
    """Return a name as a quoted SQL identifier; every name is valid in quotes, also a keyword."""
    return '"' + name.replace('"', '""') + '"'


def sql_names(names: Iterable[str]) -> str:
    """Return names as a list of quoted SQL identifiers."""
    return ", ".join(map(sql_identifier, names))


def sql_path(name: str) -> str:
    """Return a column, or a field inside of one as `customer.total`, with each name quoted."""
    return ".".join(map(sql_identifier, name.split(".")))


def duckdb_expression(sql: str, columns: Iterable[str]) -> str:
    """Return Spark SQL with its column names quoted for DuckDB, which reserves more words (`at`, `end`, `offset`).

    Quoted are names in backquotes, and bare words that are one of `columns` but neither a function's name nor SYNTAX.
    """
    known = {column.lower() for column in columns}
    if sql.strip().lower() in known:
        return sql_identifier(sql.strip())

    def quote(match: re.Match[str]) -> str:
        token, follower = match[0], match[1]
        if token[0] == "`":
            return sql_identifier(token[1:-1].replace("``", "`"))
        word = token.lower()
        return sql_identifier(token) if word in known - SYNTAX and follower is None else token

    return TOKEN.sub(quote, sql)


def same_sql(columns: Sequence[str], one: str, other: str) -> str:
    """Return the condition that two relations have rows with the same values of these columns; null is a value."""
    names = map(sql_identifier, columns)
    return " and ".join(f"{one}.{name} is not distinct from {other}.{name}" for name in names) or "true"


def json_path(members: Iterable[str]) -> str:
    """Return DuckDB's path to a value inside of a JSON object."""
    escaped = (member.replace("\\", "\\\\").replace('"', '\\"') for member in members)
    return "".join(["$", *(f'."{member}"' for member in escaped)])
