"""The function of a `fold` table: a file in the dataset's folder, and what it makes of the ordered rows of each key."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

PLACE_IN_ORDER = "_place"
"""The column of the ordered rows with the number of a row among those of its key, from 1 on."""
MACHINE_ERRORS = (OSError, MemoryError, ImportError)
"""Raised by a function, but not because of its rows."""
CHANGING = frozenset({"asyncio", "http", "io", "os", "pathlib", "random", "requests", "secrets", "socket", "time"})
CHANGING_CALLS = frozenset({"now", "utcnow", "today", "open", "input", "id", "hash"})


class FunctionFailed(ValueError):
    """A function fails on the rows of a key, or makes rows that are not as declared."""


@dataclass(frozen=True)
class FoldFunction:
    """`file`: a `.sql` file whose query reads `ordered`, or a `.py` file with the function `name`; `text` is in it."""

    file: str
    name: str
    text: str

    @property
    def is_sql(self) -> bool:
        return not self.name

    def of_keys(self, ordered: pa.Table, keys: Sequence[str], made: pa.Schema) -> pa.Table:
        """Return the rows that the function makes of each key's rows, which may come in any order, with the keys.

        Raises FunctionFailed.
        """
        rows = ordered.sort_by([(name, "ascending") for name in (*keys, PLACE_IN_ORDER)]).combine_chunks()
        begins = pc.indices_nonzero(pc.equal(rows[PLACE_IN_ORDER], 1)).to_pylist()
        parts = [self._of_key(rows.slice(a, b - a), keys, made) for a, b in _pairs([*begins, len(rows)])]
        return pa.concat_tables([made.empty_table(), *parts])

    def _of_key(self, rows: pa.Table, keys: Sequence[str], made: pa.Schema) -> pa.Table:
        own = pa.schema([field for field in made if field.name not in keys])
        try:
            found = _as_table(self._function(rows.drop_columns([PLACE_IN_ORDER])), own)
            columns = [pa.repeat(rows[key][0], len(found)) if key in keys else found[key] for key in made.names]
            return pa.table(columns, names=made.names).cast(made)
        except MACHINE_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 (a function may raise anything, and the error names its key)
            key = ", ".join(f"{name}={rows[name][0].as_py()!r}" for name in keys)
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise FunctionFailed(f"{self.file}:{self.name} fails on the rows of {key}: {why}") from error

    @cached_property
    def _function(self) -> Any:
        module = ModuleType(f"fold function {self.file}")
        exec(compile(self.text, self.file, "exec"), module.__dict__)  # noqa: S102
        return getattr(module, self.name)


def _pairs(bounds: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(bounds, bounds[1:], strict=False)


def _as_table(found: Any, own: pa.Schema) -> pa.Table:
    """Return what a function returned, a table or dictionaries, as a table with its columns."""
    if not isinstance(found, pa.Table):
        rows = list(found)
        if unknown := sorted({str(name) for row in rows for name in row} - set(own.names)):
            raise FunctionFailed(f"it makes {', '.join(unknown)}, and `returns` declares {', '.join(own.names)}")
        return pa.Table.from_pylist(rows, schema=own)
    return found.select(own.names).cast(own)


def parsed_function(value: Any, folder: Path, *, strict: bool) -> FoldFunction:
    """Return the function that `file.py:name` or `file.sql` declares; ValueError."""
    file, _, name = str(value).partition(":")
    path = folder / file
    if path.suffix not in (".py", ".sql") or bool(name) != (path.suffix == ".py"):
        raise ValueError(f"must be like spells.py:spells or spells.sql, is {value!r}")
    if strict and not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"must be a file inside the dataset's folder, is {value!r}")
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8") from error
    except OSError as error:
        raise ValueError(f"there is no file {path}") from error
    function = FoldFunction(file, name, text)
    if strict and name and (why := next(_faults(function), "")):
        raise ValueError(why)
    return function


def _faults(function: FoldFunction) -> Iterator[str]:
    """Yield what shows in the text of a Python function: it is none, or the same rows may give others."""
    try:
        tree = ast.parse(function.text, function.file)
    except (SyntaxError, ValueError, RecursionError) as error:
        yield f"{function.file}:{getattr(error, 'lineno', None) or 1}: {type(error).__name__}: {error}"
        return
    if not any(isinstance(node, ast.FunctionDef) and node.name == function.name for node in tree.body):
        yield f"{function.file} has no function {function.name}"
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        for name in sorted({each.partition(".")[0] for each in names} & CHANGING):
            yield f"{function.file}:{node.lineno}: imports {name}: {IMPURE}"  # type: ignore[attr-defined]
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        if name in CHANGING_CALLS:
            yield f"{function.file}:{node.lineno}: calls {name}(): {IMPURE}"  # type: ignore[attr-defined]
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield f"{function.file}:{node.lineno}: changes {', '.join(node.names)}: {IMPURE}"


IMPURE = "a function over a key's rows may use these rows alone, or a replay would give others"
