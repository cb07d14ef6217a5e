"""Names and words: a file or class name means one thing, and production code keeps to the vocabulary."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from source_tree import ROOT

PRODUCTION = ("include", "spark_jobs", "dags")
# Every dataset has one, and `__init__` names a package.
SHARED_FILES = {"silver.py", "__init__.py"}
FORMER_WORDS = re.compile(
    r"\b(told apart|way back|put together|brought on|goes? on|what there is|made anew|wanted any more|asked for|"
    r"beside|taken back|kept fresh|let go|come to nothing|said|(?<![`\"])asked|"
    r"under way|signs? of life|at hand|at fault)\b",
    re.IGNORECASE,
)

CLASS_NAME = re.compile(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b")
PRODUCTS = {"PySpark", "OpenLineage"}


def sources() -> list[Path]:
    return [path for top in PRODUCTION for path in sorted((ROOT / top).rglob("*.py"))]


def test_file_names_are_unique() -> None:
    found = defaultdict(list)
    for path in sources():
        if path.name not in SHARED_FILES:
            found[path.name].append(str(path.relative_to(ROOT)))
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


def test_test_modules_have_names_of_their_own() -> None:
    """Pytest imports them by their file's name: two of one name end a run of both folders."""
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path.name not in {"conftest.py", "__init__.py"}:
            found[path.name].append(str(path.relative_to(ROOT)))
    assert len(found) > 100
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


def test_class_names_are_unique() -> None:
    found = defaultdict(list)
    for path in sources():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert len(found) > 100
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


@pytest.mark.parametrize("top", [*PRODUCTION, "docs", "infra", "airflow_package", "README.md"])
def test_production_code_uses_no_former_words(top: str) -> None:
    paths = [path for path in sorted([ROOT / top, *(ROOT / top).rglob("*")]) if path.suffix in (".py", ".md")]
    assert paths
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if FORMER_WORDS.search(line) and "former_keys=" not in line
    ]
    assert not found, "\n".join(found)


def test_docstrings_name_only_classes_that_exist() -> None:
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sources()}
    known = {
        getattr(node, attribute)
        for tree in trees.values()
        for node in ast.walk(tree)
        for attribute in ("name", "id", "attr")
        if isinstance(getattr(node, attribute, None), str)
    }
    unknown = [
        f"{path.relative_to(ROOT)}: {word}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        for word in CLASS_NAME.findall(ast.get_docstring(node) or "")
        if word not in known and word not in PRODUCTS
    ]
    assert unknown == []


def test_former_words_are_found() -> None:
    assert FORMER_WORDS.search('"""Files put together."""')
    assert not FORMER_WORDS.search("tables are compacted, aside from bronze")
