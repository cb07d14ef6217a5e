"""Names, sizes, READMEs, and forbidden content of tracked files."""

from __future__ import annotations

import ast
import re
from pathlib import PurePosixPath
from statistics import median

import pytest
from source_tree import ROOT, Module, code, files, functions, modules

MOST_LINES_OF_A_FUNCTION = 60
MOST_LINES_OF_A_FILE = 500
MEDIAN_LINES_OF_A_FUNCTION = 8
MOST_LINES_OF_A_README = 15
NAMES_THAT_SAY_NOTHING = {
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "manager",
    "managers",
    "base",
    "misc",
    "stuff",
}
# Written so that this file does not break its own rules.
REGISTRIES = re.compile(
    r"(?i)pypi[.]org|pythonhosted[.]org|repo1?[.]maven|maven[.]org|central[.]sonatype|registry[.]npm|"
    r"index-url[= ]+\S+:[/]"
)
MACHINE_PATHS = re.compile(r"(?<![\w.~$}/-])/(?:work|root|Users|home/\w+)/\w")


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the end."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return function.end_lineno - body[0].lineno + 1 if body and function.end_lineno else 0


def lines(path: str) -> list[str]:
    return (ROOT / path).read_text("utf-8").splitlines()


def texts() -> list[str]:
    """Tracked files that are texts."""
    return [path for path in files() if b"\0" not in (ROOT / path).read_bytes()[:8192]]


def test_no_function_is_long() -> None:
    assert [
        f"{m.path}:{function.lineno} {name} has {body_lines(function)} lines, {MOST_LINES_OF_A_FUNCTION} at most"
        for m in modules()
        for name, function in functions(m)
        if body_lines(function) > MOST_LINES_OF_A_FUNCTION
    ] == []


@pytest.mark.parametrize("folder", ["include", "spark_jobs", "infra", "tests"])
def test_most_functions_are_short(folder: str) -> None:
    sizes = [body_lines(f) for m in modules() if m.path.startswith(f"{folder}/") for _, f in functions(m)]
    assert median(sizes) <= MEDIAN_LINES_OF_A_FUNCTION


def test_no_file_is_long() -> None:
    assert [
        f"{m.path} has {len(lines(m.path))} lines, {MOST_LINES_OF_A_FILE} at most: it answers two questions"
        for m in modules()
        if len(lines(m.path)) > MOST_LINES_OF_A_FILE
    ] == []


def test_module_names_are_specific() -> None:
    assert [
        f"{path}: a name like this says nothing; name the thing, in the words of docs/architecture.md"
        for path in files()
        if NAMES_THAT_SAY_NOTHING & {part.split(".")[0] for part in PurePosixPath(path).parts}
    ] == []


def packages() -> list[str]:
    folders = {path.rpartition("/")[0] for path in files() if path.endswith("/__init__.py")}
    return sorted(folder for folder in folders if not folder.startswith("tests"))


@pytest.mark.parametrize("package", packages())
def test_each_package_has_a_readme(package: str) -> None:
    path = f"{package}/README.md"
    assert path in files(), f"{path} is missing: what lives here, what never does"
    assert len(lines(path)) <= MOST_LINES_OF_A_README
    assert re.search(r"\b[Nn]ever\b|\bnot\b|\bno\b", "\n".join(lines(path))), (
        f"{path} does not say what never lives here"
    )


def test_each_module_and_public_function_has_a_docstring() -> None:
    found = [f"{m.path}: no docstring" for m in code() if not ast.get_docstring(m.tree)]
    found += [
        f"{m.path}:{function.lineno} {name}: no docstring"
        for m in code()
        for name, function in functions(m)
        if is_public(name, m) and not ast.get_docstring(function)
    ]
    assert found == []


def is_public(name: str, module: Module) -> bool:
    """At the top of a module. A method needs a sentence only where its class and name leave a question."""
    return name in {node.name for node in module.tree.body if isinstance(node, ast.FunctionDef)} and name[0] != "_"


@pytest.mark.parametrize("path", [path for path in files() if "/adr-" in path and path.endswith(".md")])
def test_decision_records_have_four_parts(path: str) -> None:
    text = (ROOT / path).read_text("utf-8")
    parts = re.findall(r"^\*\*(Context\.|Decision\.|Consequences\.|Violated when)\*\*", text, re.MULTILINE)
    assert parts == ["Context.", "Decision.", "Consequences.", "Violated when"]


def test_no_file_contains_a_registry_address() -> None:
    found = [path for path in texts() if REGISTRIES.search((ROOT / path).read_text("utf-8"))]
    assert found == [], "where packages come from is the user's decision: pip, uv and Ivy have their own configuration"


def test_no_file_contains_a_path_of_a_machine() -> None:
    found = [
        f"{path}:{number} {line.strip()[:100]}"
        for path in texts()
        for number, line in enumerate(lines(path), 1)
        if MACHINE_PATHS.search(line)
    ]
    assert found == []


def test_databases_are_opened_with_a_memory_limit() -> None:
    opening = re.compile(r"duckdb\.connect|\bconnect\(\":memory:")
    found = [
        path
        for path in texts()
        if path.startswith(("include/", "spark_jobs/")) and opening.search((ROOT / path).read_text())
    ]
    assert found == ["include/read/memory_database.py"], "use memory_database(): it has a limit and a place to spill"


def test_nobody_asks_for_the_kind_of_a_gold_table() -> None:
    asking = re.compile(r"isinstance\([^()]*\b(Additive|Latest|Query)?Gold\b")
    found = [
        m.path for m in modules() if not m.path.startswith("tests/") and asking.search((ROOT / m.path).read_text())
    ]
    assert found == [], "give Gold a property, or the kind's class in gold_rows or embedded_gold a method"
