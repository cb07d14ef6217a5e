"""Files of a dataset's folder that cannot be used as a whole, and patterns that can be used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from include.change.contract_check import check_contracts
from include.declare.dataset_checks import dataset_problems
from include.declare.portable_regex import pattern_fault
from include.declare.yaml_declarations import Problem
from include.ground.settings import CLONE, Settings

CONTRACT, PIPELINE, SILVER, QUERY = "contract.yaml", "pipeline.yaml", "silver.py", "gold/worst_delays.sql"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CLONE / "include" / "datasets", tmp_path / "datasets", ignore=ignored)
    return Settings(state=tmp_path / "state", datasets=tmp_path / "datasets")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        (
            CONTRACT,
            "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)),
            "more than 100,000 values",
        ),
        (CONTRACT, "a: &a [*a]\n", "is not YAML"),
        (CONTRACT, "? [1]\n: 2\n", "a key must be a text"),
        (CONTRACT, "5\n", "must be a mapping of keys, is 5"),
        (PIPELINE, None, "is missing"),
        (SILVER, None, "is missing"),
        (SILVER, "", "must define a function"),
        (QUERY, "", "is empty"),
        (QUERY, "select day, origin, " + "(" * 2000 + "1" + ")" * 2000 + " from silver", "nested too deeply"),
    ],
)
def test_whole_file_that_cannot_be_used_is_a_problem(
    settings: Settings, file: str, text: str | None, words: str
) -> None:
    path = settings.datasets / "flights" / file
    path.unlink()
    if text is not None:
        path.write_text(text, "utf-8")
    assert any(words in str(found) for found in dataset_problems(settings, "flights"))


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        (PIPELINE, "partition: substring(flight_id, 1, 7)", "partition: substrin(flight_id, 1, 7)"),
        (PIPELINE, "{sum: departure_delay}", "{sum: absolute(departure_delay)}"),
        (QUERY, "select day, origin,", "select day, origin, uppr(dest) as x,"),
    ],
)
def test_function_that_spark_does_not_have_is_a_problem(settings: Settings, file: str, old: str, new: str) -> None:
    path = settings.datasets / "flights" / file
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")
    assert any("is not a function of Spark" in found.why for found in dataset_problems(settings, "flights"))


@pytest.mark.parametrize("kind", ["folder", "link to nothing"])
def test_silver_code_that_is_no_file_is_a_problem(settings: Settings, kind: str) -> None:
    path = settings.datasets / "flights" / SILVER
    path.unlink()
    path.mkdir() if kind == "folder" else path.symlink_to("/nosuch")
    assert {found.file for found in dataset_problems(settings, "flights")} >= {path}


def test_contract_check_reads_the_first_version_of_reference_tables(settings: Settings) -> None:
    folder = settings.datasets / "flights" / "reference"
    (folder / "planes.csv").write_text("tailnum,year,seats\nN1,soon,5\n", "utf-8")
    (folder / "airlines.csv").unlink()
    (found,) = check_contracts(settings, "flights")
    assert [("planes.csv" in each, "airlines.csv" in each) for each in found.problems] == [(False, True), (True, False)]


@pytest.mark.parametrize(
    "pattern",
    [r"^\d{4}/[A-Z]{3}(/[A-Z]{3})?$", r"^(\d{1,3}\.){3}\d{1,3}$", "^[a-z]+(-[a-z]+){0,99}$", "^([A-Z]+)*+$"]
    + ["^[a-z.]+@[a-z]+[.][a-z]+$", ".*foo.*", "^.*,.*$", "^(A|B){0,999}$", "^[^;]+;[^;]+;[^;]+;$"],
)
def test_pattern_that_matches_in_linear_time_is_accepted(pattern: str) -> None:
    assert pattern_fault(pattern, java_only=True) is None


@pytest.mark.parametrize(
    ("pattern", "slow"),
    [
        ("((a{0,5}){0,5}){0,5}b", "((a{0,5}){0,5}){0,5}"),
        ("^x((a{0,5}){0,5}){0,5}$", "((a{0,5}){0,5}){0,5}"),
        ("^(a?){20}a{20}$", "(a?){20}"),
        ("^((a?){9}){9}$", "((a?){9}){9}"),
        ("^x(a|ab|b){0,20}c", "(a|ab|b){0,20}"),
        ("(?=((a{1,9}){1,9}){1,9}c)a", "(a{1,9}){1,9}"),
        ("^a((x{1,9}x{1,9}){1,9}y)?", "(x{1,9}x{1,9}){1,9}"),
        ("a+a+b", None),
    ],
)
def test_pattern_that_backtracks_too_often_is_refused_with_its_group(pattern: str, slow: str | None) -> None:
    why = pattern_fault(pattern)
    assert why is not None
    assert why.startswith(f"'{slow}' in '{pattern}'" if slow else f"'{pattern}'"), why


@pytest.mark.parametrize("pattern", ["[a-z0-9]+[.]?[a-z0-9]+@[a-z]+", "^[a-z]+ ?[a-z]+ ?[a-z]+$", "a+a+b"])
def test_pattern_is_accepted_for_texts_short_enough(pattern: str) -> None:
    """Three quantifiers that share a text take the third power of its length."""
    assert pattern_fault(pattern, longest=256) is None
    assert pattern_fault(pattern, longest=10_000) is not None


def test_problem_is_written_as_file_line_key_and_reason() -> None:
    assert str(Problem(Path("a/b.yaml"), 3, "x[0].y", "must be z")) == "a/b.yaml:3: x[0].y: must be z"
