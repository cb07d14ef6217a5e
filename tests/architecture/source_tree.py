"""The project's tracked files and Python modules as text and syntax, never imported."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = ("include", "spark_jobs", "infra", "dags", "airflow_package")


@dataclass(frozen=True)
class Module:
    """One Python file: its path relative to the clone, dotted name, and syntax tree."""

    path: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Dotted name; a package's `__init__` has the package's."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def is_transformation(self) -> bool:
        """Whether it is a dataset's own code."""
        return self.path.startswith(("include/datasets/", "tests/workloads/datasets/"))


@lru_cache(maxsize=1)
def files() -> tuple[str, ...]:
    """Return the paths of all files that a fresh clone has: all but those that `.gitignore` names. Needs no git."""
    ignored = tuple(line.rstrip("/") for line in (ROOT / ".gitignore").read_text("utf-8").split() if line)
    return tuple(sorted(_files_below(ROOT, (".git", *ignored))))


def _files_below(folder: Path, ignored: tuple[str, ...]) -> Iterator[str]:
    """Yield files relative to the clone; a pattern of `.gitignore` here is a name, without a path."""
    for path in folder.iterdir():
        if any(fnmatch(path.name, pattern) for pattern in ignored):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _files_below(path, ignored)
        elif not path.is_dir():
            # A link to a folder is no file, and that folder's files are found where they are.
            yield str(path.relative_to(ROOT))


@lru_cache(maxsize=1)
def modules() -> tuple[Module, ...]:
    """Return every Python file of the project."""
    # Python's garbage collector visits the trees again and again while they grow: 10.7 CPU seconds instead of 1.5.
    gc.disable()
    try:
        return tuple(Module(p, ast.parse((ROOT / p).read_text("utf-8"), p)) for p in files() if p.endswith(".py"))
    finally:
        gc.enable()


def code() -> list[Module]:
    """Return the modules that run in production."""
    return [module for module in modules() if module.path.split("/")[0] in CODE]


@lru_cache(maxsize=1)
def module_names() -> frozenset[str]:
    """Return the dotted names of all modules."""
    return frozenset(module.name for module in modules())


@cache
def imports(module: Module) -> tuple[tuple[int, str], ...]:
    """Return line and dotted name of everything imported; `from a import b` gives `a.b` where that is a module."""
    return tuple(_imports(module))


def _imports(module: Module) -> Iterator[tuple[int, str]]:
    known = module_names()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield node.lineno, inner if inner in known else node.module


def functions(module: Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function with its qualified name inside the module."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            inner = f"{prefix}{child.name}" if isinstance(child, DEFINITIONS) else prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield inner, child
            yield from visit(child, f"{inner}." if isinstance(child, DEFINITIONS) else prefix)

    yield from visit(module.tree, "")


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@cache
def calls(module: Module) -> tuple[tuple[str, ast.Call], ...]:
    """Return every call with the qualified name of the innermost function around it (`` outside of functions)."""
    found = []
    waiting: list[tuple[ast.AST, str, str]] = [(module.tree, "", "")]
    while waiting:
        node, scope, function = waiting.pop()
        if isinstance(node, ast.Call):
            found.append((function, node))
        if isinstance(node, DEFINITIONS):
            scope = f"{scope}.{node.name}".lstrip(".")
            function = function if isinstance(node, ast.ClassDef) else scope
        waiting.extend((child, scope, function) for child in ast.iter_child_nodes(node))
    return tuple(found)


def identifiers(module: Module) -> set[str]:
    """Return all names and attributes that the module uses."""
    nodes = [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute | ast.Name)]
    return {node.attr if isinstance(node, ast.Attribute) else node.id for node in nodes}
