"""Names and words: a file or class name means one thing, and production code keeps to the vocabulary."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import PurePosixPath

from source_tree import ROOT, Module, files, modules

PRODUCTION = ("include", "spark_jobs", "dags")
# Every dataset has one, and `__init__` names a package.
SHARED_FILES = {"silver.py", "__init__.py"}
CLASS_NAME = re.compile(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b")
FILE_NAME = re.compile(r"`([\w/-]+\.(?:py|java))`")
TOPS = ("include/", "spark_jobs/", "tests/", "infra/", "dags/", "airflow_package/")
PRODUCTS = {"PySpark", "OpenLineage"}


def sources() -> list[Module]:
    return [module for module in modules() if module.path.split("/")[0] in PRODUCTION]


def test_test_modules_have_names_of_their_own() -> None:
    """Pytest imports them by their file's name: two of one name end a run of both folders."""
    found = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        found[path.name].append(str(path.relative_to(ROOT)))
    assert len(found) > 100
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


def test_class_names_are_unique() -> None:
    found = defaultdict(list)
    for module in sources():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module.path)
    assert len(found) > 100
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


def test_docstrings_name_only_classes_that_exist() -> None:
    known = {
        getattr(node, attribute)
        for module in sources()
        for node in ast.walk(module.tree)
        for attribute in ("name", "id", "attr")
        if isinstance(getattr(node, attribute, None), str)
    }
    unknown = [
        f"{module.path}: {word}"
        for module in sources()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        for word in CLASS_NAME.findall(ast.get_docstring(node) or "")
        if word not in known and word not in PRODUCTS
    ]
    assert unknown == []


def test_documents_name_files_that_exist() -> None:
    paths = set(files())
    names = {PurePosixPath(path).name for path in paths}
    unknown = [
        f"{document}: {name}"
        for document in sorted(path for path in paths if path.endswith(".md"))
        for name in FILE_NAME.findall((ROOT / document).read_text("utf-8"))
        if (name.startswith(TOPS) and name not in paths) or PurePosixPath(name).name not in names
    ]
    assert unknown == []
