"""The page of guarantees names tests that exist, and the command of a test's column runs it."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from source_tree import ROOT, files

PAGE = ROOT / "docs" / "explanation" / "guarantees.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
ROW = re.compile(r"^\| (?!guarantee|---)(?P<guarantee>.+?) \|(?P<test>.*?)\|(?P<test_all>.*)\|$", re.MULTILINE)
ROWS = [match.groupdict() for match in ROW.finditer(PAGE.read_text("utf-8"))]


def is_extended(mark: ast.expr) -> bool:
    """Whether an expression is, or lists, the marker `extended`."""
    return any(isinstance(node, ast.Attribute) and node.attr == "extended" for node in ast.walk(mark))


def is_of_some_cases(mark: ast.expr) -> bool:
    """Whether a marker stands inside `parametrize`: it is of those cases alone."""
    return isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("parametrize")


@cache
def extended_by_name(path: str) -> dict[str, bool]:
    """Return the tests of a file, and whether every case of it is extended."""
    if path not in files():
        return {}
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    of_all = any(
        isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark" and is_extended(node.value)
        for node in tree.body
    )
    return {
        node.name: of_all or any(is_extended(each) and not is_of_some_cases(each) for each in node.decorator_list)
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def named(cell: str) -> list[tuple[str, str]]:
    return TEST.findall(cell)


def test_the_page_has_its_guarantees() -> None:
    assert len(ROWS) > 30
    for row in ROWS:
        for cell in (row["test"], row["test_all"]):
            assert cell.count("::") == len(named(cell)), cell


@pytest.mark.parametrize("row", ROWS, ids=[row["guarantee"][:60] for row in ROWS])
def test_each_guarantee_has_tests_which_its_commands_run(row: dict[str, str]) -> None:
    assert named(row["test"]), "make test shows each guarantee"
    wrong = [
        f"{path}::{name} {'does not exist' if name not in extended_by_name(path) else f'is not run by make {command}'}"
        for command, cell, extended in (("test", row["test"], False), ("test-all alone", row["test_all"], True))
        for path, name in named(cell)
        if extended_by_name(path).get(name) is not extended
    ]
    assert wrong == []
