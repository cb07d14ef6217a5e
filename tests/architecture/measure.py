"""Measures the size of the product and holds its bounds: `python tests/architecture/measure.py` (part of `make check`).

A bound is lowered with each change that makes it possible, and never raised without a decision record.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from source_tree import ROOT, Module, files, functions, modules

PRODUCT = ("include/", "spark_jobs/", "dags/", "airflow_package/")
GOLD_HOME = ("include.declare", "spark_jobs.layers.gold")
"""The packages that know the kinds of gold."""


def product() -> list[Module]:
    """Return the product's modules, without datasets."""
    return [m for m in modules() if m.path.startswith(PRODUCT) and not m.is_transformation]


def lines(path: str) -> int:
    return len((ROOT / path).read_text("utf-8").splitlines())


def java_lines() -> int:
    return sum(lines(path) for path in files() if path.startswith(PRODUCT) and path.endswith(".java"))


def packages() -> int:
    return len({m.path.rpartition("/")[0] for m in product()})


def gold_branches() -> int:
    """Count `isinstance(…Gold)` outside the packages that know the kinds of gold."""
    return sum(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and "Gold" in ast.unparse(node.args[1])
        for m in product()
        if not m.name.startswith(GOLD_HOME)
        for node in ast.walk(m.tree)
    )


def single_importers() -> int:
    """Count modules with one importer, which lies in the same folder."""
    importers: dict[str, set[str]] = {m.name: set() for m in product()}
    for m in product():
        for node in ast.walk(m.tree):
            if isinstance(node, ast.ImportFrom) and node.module in importers and node.module != m.name:
                importers[node.module].add(m.name)
    return sum(
        len(found) == 1 and next(iter(found)).rpartition(".")[0] == name.rpartition(".")[0]
        for name, found in importers.items()
    )


def median_function() -> int:
    sizes = [node.end_lineno - node.lineno + 1 for m in product() for _, node in functions(m) if node.end_lineno]
    return int(median(sizes))


@dataclass(frozen=True)
class Measure:
    """A figure, its bound now and its goal."""

    name: str
    count: Callable[[], int]
    bound: int
    goal: int


MEASURES = (
    Measure("lines of product Python", lambda: sum(lines(m.path) for m in product()), 72_595, 52_000),
    Measure("modules", lambda: len(product()), 325, 330),
    Measure("packages", packages, 25, 20),
    Measure("lines of own Java", java_lines, 3_466, 650),
    Measure("modules with one importer, a sibling", single_importers, 19, 30),
    Measure("isinstance(…Gold) outside its packages", gold_branches, 0, 0),
    Measure("median lines of a function", median_function, 8, 8),
)


def main() -> int:
    """Print the table; return 1 when a bound is exceeded."""
    exceeded = 0
    for measure in MEASURES:
        found = measure.count()
        verdict = "exceeds its bound" if found > measure.bound else "goal met" if found <= measure.goal else ""
        exceeded += found > measure.bound
        print(f"{measure.name:42} {found:>7,}  bound {measure.bound:>7,}  goal {measure.goal:>7,}  {verdict}")
    return int(exceeded > 0)


if __name__ == "__main__":
    sys.exit(main())
